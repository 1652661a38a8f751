"""How long passes of the planner take as a whole, those that fail among them: what `/metrics` tells."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import structlog
from django.db import transaction

from scheduling.models import PlannerPass

log = structlog.get_logger(__name__)

#: A pass that took less and changed nothing only looked.
LOOKING_SECONDS = 0.1
PASSES_KEPT_FOR = timedelta(days=2)


@dataclass
class Pass:
    """A pass that is under way. ``commits``: how many it made; ``attempts``: how often it read the facts."""

    commits: int = 0
    attempts: int = 0


@contextmanager
def measured_pass(cluster_id: int) -> Iterator[Pass]:
    """Measure a pass from its beginning to its end, whatever ends it."""
    began = time.perf_counter()
    one, failed = Pass(), True
    try:
        yield one
        failed = False
    finally:
        seconds = time.perf_counter() - began
        if failed or one.commits or seconds > LOOKING_SECONDS:
            _note(cluster_id, seconds, one.attempts, failed=failed)


def _note(cluster_id: int, seconds: float, attempts: int, *, failed: bool) -> None:
    """Never raises: what ended the pass must be heard."""
    try:
        with transaction.atomic():
            PlannerPass.objects.create(
                cluster_id=cluster_id, seconds=seconds, attempts=attempts, failed=failed
            )
    except Exception:
        log.exception("pass_not_recorded", cluster=cluster_id, seconds=seconds)
