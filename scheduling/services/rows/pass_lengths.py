"""How long passes of the planner take as a whole, those that fail among them: what `/metrics` tells."""

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

#: A pass that took less and changed nothing only looked.
LOOKING_SECONDS = 0.1
PASSES_KEPT_FOR = timedelta(days=2)


@dataclass
class Pass:
    """A pass that is under way. ``commits``: how many it made; ``overtaken``: how many of its steps were
    computed again; ``seconds_by_step``: what its steps took, all attempts together, and ``waiting`` what lay
    between them: for the lease, and for the cluster's row where a step was overtaken."""

    commits: int = 0
    overtaken: int = 0
    seconds_by_step: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str, overtaken: int = 0) -> Iterator[None]:
        """Measure one step, also where facts overtake it. ``overtaken``: how often they did before."""
        began = time.perf_counter()
        self.overtaken += overtaken
        try:
            yield
        finally:
            taken = self.seconds_by_step.get(name, 0.0) + time.perf_counter() - began
            self.seconds_by_step[name] = round(taken, 4)


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
        one.seconds_by_step["waiting"] = round(max(seconds - sum(one.seconds_by_step.values()), 0.0), 4)
        if failed or one.commits or seconds > LOOKING_SECONDS:
            _note(cluster_id, seconds, one, failed=failed)


def _note(cluster_id: int, seconds: float, one: Pass, *, failed: bool) -> None:
    """Never raises: what ended the pass must be heard."""
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
