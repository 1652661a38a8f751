"""Durations of the planner's passes, including failed ones, for `/metrics`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import structlog
from django.db import transaction

from scheduling.models import PlannerPass

log = structlog.get_logger(__name__)

#: A pass that took less time and changed nothing is not stored.
LOOKING_SECONDS = 0.1
PASSES_KEPT_FOR = timedelta(days=2)


@dataclass
class Pass:
    """A running pass. ``idle``: it had nothing to do; ``commits``: number of its commits; ``overtaken``:
    number of steps that were computed again; ``seconds_by_step``: durations of its steps with all attempts,
    and under ``waiting`` the time between them: for the lease, and for the cluster's row if a step was
    overtaken."""

    idle: bool = False
    commits: int = 0
    overtaken: int = 0
    seconds_by_step: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str, overtaken: int = 0) -> Iterator[None]:
        """Measure one step, also if facts overtake it. ``overtaken``: how often they did before."""
        began = time.perf_counter()
        self.overtaken += overtaken
        try:
            yield
        finally:
            taken = self.seconds_by_step.get(name, 0.0) + time.perf_counter() - began
            self.seconds_by_step[name] = round(taken, 4)


@contextmanager
def measured_pass(cluster_id: int) -> Iterator[Pass]:
    """Measure a pass from its beginning to its end, however it ends."""
    began = time.perf_counter()
    one, failed = Pass(), True
    try:
        yield one
        failed = False
    finally:
        seconds = time.perf_counter() - began
        one.seconds_by_step["waiting"] = round(max(seconds - sum(one.seconds_by_step.values()), 0.0), 4)
        if failed or one.commits or seconds > LOOKING_SECONDS:
            _note(cluster_id, seconds, one, failed=failed)


def _note(cluster_id: int, seconds: float, one: Pass, *, failed: bool) -> None:
    """Store the pass. Never raises, so that an error that ended the pass is not hidden."""
    try:
        with transaction.atomic():
            PlannerPass.objects.create(
                cluster_id=cluster_id,
                seconds=seconds,
                overtaken=one.overtaken,
                seconds_by_step=one.seconds_by_step,
                failed=failed,
            )
    except Exception:
        log.exception("pass_not_recorded", cluster=cluster_id, seconds=seconds)
