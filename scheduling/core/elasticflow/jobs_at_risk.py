"""Jobs at risk: a promise that no plan keeps any more ends as early as the kept promises leave room for."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import NamedTuple

from scheduling.core.elasticflow.minimum_satisfactory_share import Terms, earliest_finish, fill
from scheduling.core.elasticflow.promises import Promises
from scheduling.core.kernels import NO
from scheduling.core.plans.timeline import TAKE, Timeline, occupy
from scheduling.core.problem.problem import Problem
from scheduling.core.question.arrays import TIME_TOLERANCE, Plans, copy_plans, set_plan


class Hurried(NamedTuple):
    """How jobs at risk would fare beside plans that keep all promises. These plans are only compared.

    ``without_room``: how many find no GPUs at all. ``ends``: when the others end, in sum, in seconds from
    now. ``left``: the timeline of what all leave free.
    """

    without_room: int
    ends: float
    left: Timeline

    def later_than(self, other: Hurried) -> bool:
        """Whether the jobs end later in sum, or fewer of them at all."""
        if self.without_room != other.without_room:
            return self.without_room > other.without_room
        return self.ends > other.ends + TIME_TOLERANCE


class Sparing:
    """What newcomers leave to the jobs at risk of one decision (decision 0016); nothing under the published
    algorithm."""

    def __init__(self, admission: Promises) -> None:
        self._admission = admission
        self._beside_present_plans: tuple[Plans, Hurried] | None = None

    def rows(self) -> list[int]:
        """Jobs that are spared, in deadline order: those at risk that GPUs can help."""
        admission = self._admission
        if admission.search is None or not admission.at_risk:
            return []
        able = admission.problem.jobs.level_count > 0
        return admission.in_deadline_order([row for row in admission.at_risk if able[row]])

    def room_for_newcomers(self) -> Timeline:
        """What promises leave free, and the spared jobs with them."""
        if self.rows():
            return self._at_present().left
        return self._admission.free_beside_promises()

    def make_room(self) -> bool:
        """Let promises have their least shares, unless spared jobs end later beside these. Returns whether
        plans changed."""
        admission = self._admission
        if not self.rows():
            return False
        afresh, failed = admission.refilled(admission.rows, promising=True)
        affordable = None if failed else admission.budget.affordable(afresh, admission.rows)
        if affordable is None or self._beside(affordable, admission.rows).later_than(self._at_present()):
            return False
        admission.plans = affordable
        return True

    def delayed_by(self, plans: Plans, newcomer: int) -> bool:
        """Whether ``plans``, mended for the pauses of a newcomer, take what the spared jobs need."""
        if not self.rows():
            return False
        return self._beside(plans, [*self._admission.rows, newcomer]).later_than(self._at_present())

    def _at_present(self) -> Hurried:
        admission = self._admission
        if self._beside_present_plans is None or self._beside_present_plans[0] is not admission.plans:
            self._beside_present_plans = (admission.plans, self._beside(admission.plans, admission.rows))
        return self._beside_present_plans[1]

    def _beside(self, plans: Plans, promised: list[int]) -> Hurried:
        """The spared jobs on what ``plans`` leave free, by which the promises to ``promised`` are kept."""
        rows = self.rows()
        hurried, timeline = hurry(
            self._admission.problem, copy_plans(plans), rows, self._admission.timeline(promised, plans)
        )
        planned = hurried.length[rows] > 0
        ends = hurried.finish[rows][planned]
        return Hurried(len(rows) - ends.size, float(ends.sum()), timeline)


def hurry(problem: Problem, plans: Plans, rows: Iterable[int], timeline: Timeline) -> tuple[Plans, Timeline]:
    """Plan each of ``rows``, in this order, to end as early as the timeline allows; the reserve may be used.

    Demoted to their lowest level such jobs would be late for certain; a delay that passes must not do that.
    Returns the plans, without one for a job that finds no room at all, and what they leave free.
    """
    for row in rows:
        draft = problem.scratch(timeline.pieces)
        earliest = earliest_finish(problem.jobs, row, timeline, False, problem.slots, draft)
        plans.length[row] = 0
        if earliest == inf:
            continue
        pieces, finish, gpu_time = fill(
            problem.jobs,
            row,
            earliest + TIME_TOLERANCE,
            timeline,
            problem.slots,
            Terms(guarded=False, suffix=False),
            draft,
        )
        if pieces:
            plans = set_plan(plans, row, draft, pieces, finish, gpu_time)
            timeline = occupy(timeline, plans, row, TAKE, NO)
    return plans, timeline
