"""Isolation of failures when many things are processed in turn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog
from django.db import OperationalError, transaction

log = structlog.get_logger(__name__)


@contextmanager
def by_itself(task: str, **about: Any) -> Iterator[None]:
    """Do all of the body or nothing of it. A failure is logged and left for the next call; the caller
    continues.

    Args:
        task: what could not be done, for the log, with ``about``.

    Raises:
        OperationalError: rows are locked or the database is away, so the others would fail too.
    """
    try:
        with transaction.atomic():
            yield
    except OperationalError:
        raise
    except Exception:
        log.exception("failed, and left for the next look", task=task, **about)
