"""Work on many things of which one must not stop the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog
from django.db import OperationalError, transaction

log = structlog.get_logger(__name__)


@contextmanager
def by_itself(task: str, **about: Any) -> Iterator[None]:
    """Do all of this or nothing of it. What fails is logged and left for the next look; the caller goes on.

    Args:
        task: what is logged that could not be done, with ``about``.

    Raises:
        OperationalError: others hold the rows, or the database is away, whoever comes next.
    """
    try:
        with transaction.atomic():
            yield
    except OperationalError:
        raise
    except Exception:
        log.exception("failed, and left for the next look", task=task, **about)
