"""Jobs at risk: no plan keeps their promise, so they end as early as the kept promises allow."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import NamedTuple

from kernels.compiling import NO
from scheduling.core.elasticflow.minimum_satisfactory_share import Terms, earliest_finish, fill
from scheduling.core.elasticflow.promises import Promises
from scheduling.core.plans.timeline import TAKE, Timeline, occupy
from scheduling.core.problem.problem import Problem
from scheduling.core.question.arrays import TIME_TOLERANCE, Plans, copy_plans, set_plan


class EarliestFinishes(NamedTuple):
    """When the protected jobs would end beside a given set of promised plans; serves to compare such sets."""

    #: Number of jobs that find no GPUs at all.
    without_room: int
    #: Sum of the finish times of the other jobs, in seconds from now.
    ends: float
    #: Free capacity beside the promises and the protected jobs.
    left: Timeline

    def later_than(self, other: EarliestFinishes) -> bool:
        """Whether fewer jobs find GPUs than in ``other``, or as many and their finish times sum to more."""
        if self.without_room != other.without_room:
            return self.without_room > other.without_room
        return self.ends > other.ends + TIME_TOLERANCE


class JobsAtRisk:
    """Keeps newcomers from delaying jobs at risk (decision 0011). The published algorithm does not."""

    def __init__(self, admission: Promises) -> None:
        self._admission = admission
        self._beside_present_plans: tuple[Plans, EarliestFinishes] | None = None

    def rows(self) -> list[int]:
        """The jobs protected from delay, in deadline order: jobs at risk that have a level."""
        admission = self._admission
        if admission.search is None or not admission.at_risk:
            return []
        able = admission.problem.jobs.level_count > 0
        return admission.in_deadline_order([row for row in admission.at_risk if able[row]])

    def room_for_newcomers(self) -> Timeline:
        """Free capacity beside the promises and the protected jobs."""
        if self.rows():
            return self._at_present().left
        return self._admission.free_beside_promises()

    def make_room(self) -> bool:
        """Cut the promises to their minimum satisfactory shares, unless protected jobs would end later.

        Returns whether plans changed.
        """
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
        """Whether the protected jobs would end later beside ``plans`` with the newcomer's promise."""
        if not self.rows():
            return False
        return self._beside(plans, [*self._admission.rows, newcomer]).later_than(self._at_present())

    def _at_present(self) -> EarliestFinishes:
        admission = self._admission
        if self._beside_present_plans is None or self._beside_present_plans[0] is not admission.plans:
            self._beside_present_plans = (admission.plans, self._beside(admission.plans, admission.rows))
        return self._beside_present_plans[1]

    def _beside(self, plans: Plans, promised: list[int]) -> EarliestFinishes:
        """When the protected jobs would end beside the ``plans`` of the rows ``promised``."""
        rows = self.rows()
        early, timeline = plan_earliest_finish(
            self._admission.problem, copy_plans(plans), rows, self._admission.timeline(promised, plans)
        )
        planned = early.length[rows] > 0
        ends = early.finish[rows][planned]
        return EarliestFinishes(len(rows) - ends.size, float(ends.sum()), timeline)


def plan_earliest_finish(
    problem: Problem, plans: Plans, rows: Iterable[int], timeline: Timeline
) -> tuple[Plans, Timeline]:
    """Plan each of ``rows``, in this order, to end as early as the timeline allows.

    The jobs may use the failure reserve. They are not cut to their lowest level, as other work without a
    promise is: a short disturbance would then make them late for certain. Returns (plans, the free capacity
    that is left). A job that finds no room gets no plan.
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
