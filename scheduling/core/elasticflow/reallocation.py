"""Reallocation: divide the cluster's GPUs in the next slot among all jobs.

The steps, in order: minimum satisfactory shares of the promises, work without a promise,
grants of leftover GPUs (ElasticFlow section 4.2, Algorithm 2), placement, pause budget. If the pauses of a
division break a promise, the next attempt grants fewer GPUs. The last attempt takes the stored plans without
any grant and places promises first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kernels.compiling import NO
from scheduling.core.elasticflow.admission import Admission
from scheduling.core.elasticflow.attempts import ATTEMPTS, EVERY_GRANT, Base, Grants
from scheduling.core.elasticflow.elastic_allocation import (
    BeforeGrants,
    BesideGrants,
    Growing,
    before_grants,
    fill_unpromised,
    granted_and_held,
    granted_beside_promises,
)
from scheduling.core.elasticflow.first_growth import FirstGrowth, GrowthRules
from scheduling.core.elasticflow.growth_experience import expected_seconds, unknown_seconds
from scheduling.core.elasticflow.holding import next_wake
from scheduling.core.elasticflow.jobs_at_risk import plan_earliest_finish
from scheduling.core.elasticflow.minimum_satisfactory_share import NO_HEAD
from scheduling.core.elasticflow.pause_budget import PauseBudget
from scheduling.core.elasticflow.placing_promises_first import placed_promises_first
from scheduling.core.elasticflow.search_limits import SearchLimits
from scheduling.core.elasticflow.settling import BROKEN, KEPT, wanted_gpus
from scheduling.core.elasticflow.wider_search import planned_anew
from scheduling.core.placement.changes import Changes, changes_between, changes_of
from scheduling.core.placement.occupancy import Occupancy
from scheduling.core.placement.repacking import Seating, repack_together
from scheduling.core.plans.charging import NO_CHARGES
from scheduling.core.plans.timeline import occupied
from scheduling.core.problem.problem import Problem
from scheduling.core.problem.work import Work
from scheduling.core.question.arrays import Plans, differing
from scheduling.core.question.snapshot import FloatArray, IntArray


@dataclass(frozen=True)
class Outcome:
    """The reallocation that a decision makes."""

    #: Plans of all rows.
    plans: Plans
    #: Changes of placement for the next slot.
    changes: Changes
    #: Notes for the decision's report.
    notes: tuple[str, ...]


class Planner:
    """One decision: admission, then the reallocation.

    ``search``: limits of the wider search, or None for the published admission. ``growth``: a policy's rule
    that grows jobs before Algorithm 2 grants the rest; it runs when there is work without a promise.
    ``ageing``: work without a promise is served shortest first, less a credit for its waiting time (decision
    0014); False serves it shortest first, as published. ``experience``: growth is expected to last as long as
    the job's last one did (`growth_experience`); False expects what the plans say, as published.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        search: SearchLimits | None = None,
        growth: FirstGrowth | None = None,
        ageing: bool = False,
        experience: bool = False,
    ) -> None:
        self.problem = problem
        self.experience = experience
        self.growth = growth
        self.ageing_weight = problem.settings.ageing_weight if ageing else 0.0
        self.seating = Seating(self.problem.present_placement)
        self.budget = PauseBudget(self.problem, self.seating)
        self.admission = Admission(
            self.problem, self.budget, search=search, work=Work(self.problem.settings.most_work)
        )

    # Work without a promise ----------------------------------------------------------------

    def unpromised(self, declined: set[int]) -> list[int]:
        """Rows without a promise in serving order: jobs at risk first, then shortest first.

        With ageing, a job's waiting time shortens its running time in that order. ``declined`` rows are left
        out.
        """
        if len(self.admission.own_rows()) + len(declined) == self.problem.count:
            return []
        promised = set(self.admission.rows)
        jobs = self.problem.jobs
        rows = [
            row
            for row in range(self.problem.count)
            if row not in promised and row not in declined and jobs.level_count[row] > 0
        ]
        if not rows:
            return rows
        at_risk = set(self.admission.at_risk)
        seconds = self._aged(
            jobs.work[: self.problem.count] / np.maximum(jobs.throughput[: self.problem.count, 0], 1e-300)
        )
        submission = self.problem.by_submission
        return sorted(rows, key=lambda row: (row not in at_risk, float(seconds[row]), int(submission[row])))

    def _aged(self, seconds: FloatArray) -> FloatArray:
        """Running times in seconds, less the ageing weight times the seconds since submission.

        All jobs age at the same rate, so waiting never swaps two jobs. A job of ``seconds`` comes before
        every job that is submitted more than ``seconds / weight`` later.
        """
        if self.ageing_weight == 0.0:
            return seconds
        aged: FloatArray = seconds - self.ageing_weight * (
            self.problem.now - self.problem.columns.submitted_at
        )
        return aged

    def forecast_unpromised(self, plans: Plans, rows: list[int]) -> Plans:
        """Plan the new jobs ``rows``, which have no promise, on the free capacity beside all other plans."""
        if not rows:
            return plans
        problem = self.problem
        promised = set(self.admission.rows)
        timeline = self.admission.timeline(self.admission.rows, plans)
        others = [
            row
            for row in range(problem.count)
            if row not in promised and row not in rows and plans.length[row] > 0
        ]
        ordered = sorted(rows, key=lambda row: int(problem.by_submission[row]))
        timeline = occupied(timeline, plans, np.array(others, dtype=np.int64), NO)
        plans, _ = fill_unpromised(
            problem.jobs, plans, np.array(ordered, dtype=np.int64), self._no_heads(), timeline,
            problem.slots,
        )  # fmt: skip
        return plans

    def next_wake(self, plans: Plans, rows: IntArray) -> float:
        """The first time after the next slot begins, in seconds from now, at which a plan of ``rows`` or of a
        held offer takes more GPUs or ends."""
        problem, offers = self.problem, self.admission.offers
        concerned = np.concatenate((rows, offers)) if offers.size else rows
        return float(next_wake(problem.jobs, plans, concerned, problem.slots))

    def _no_heads(self) -> IntArray:
        return np.full(self.problem.jobs.work.size, NO_HEAD)

    def _beside_mended_promises(self, before: Plans, plans: Plans, unpromised: list[int]) -> Plans:
        """Plan the unpromised jobs again after the next slot, if the pause budget changed a promised plan."""
        if not unpromised or not differing(plans, before)[self.admission.rows].any():
            return plans
        problem = self.problem
        heads = wanted_gpus(plans, self.problem.count)
        plans, _ = fill_unpromised(
            problem.jobs, plans, np.array(unpromised, dtype=np.int64), heads,
            self.admission.timeline(self.admission.rows, plans), problem.slots,
        )  # fmt: skip
        return plans

    def first_change_at(self, plans: Plans, declined: set[int]) -> float:
        """The first time, on the snapshot's axis, at which a plan takes more GPUs than its job holds or ends.

        Rows of ``declined`` jobs do not count.
        """
        problem = self.problem
        rows = [row for row in range(problem.count) if row not in declined]
        held = problem.jobs.gpus
        for row in rows:
            if plans.length[row] and plans.gpus[row, 0] > held[row]:
                return problem.next_slot_at
        wake = self.next_wake(plans, np.array(rows, dtype=np.int64))
        return wake + problem.now

    # Reallocation --------------------------------------------------------------------------

    def reallocate(self, declined: set[int]) -> Outcome:
        """Divide the cluster by the first of `ATTEMPTS` that keeps every promise with all pauses."""
        unpromised = self.unpromised(declined)
        kept = self.admission.plans
        fresh = self._filled_afresh() or kept
        allocated: dict[tuple[Base, Grants, bool], tuple[Plans, int] | None] = {}
        for attempt in ATTEMPTS:
            if attempt.grants is Grants.HALF and self._grants_made(allocated) <= 1:
                continue
            way = (attempt.base, attempt.grants, attempt.hold)
            if way not in allocated:
                base = self._base(attempt.base, fresh, kept)
                grants = self._most_grants(attempt.grants, allocated)
                allocated[way] = (
                    None if base is None else self._allocated(base, unpromised, grants, hold=attempt.hold)
                )
            found = allocated[way]
            if found is None:
                continue
            outcome = self._settled(
                found[0], unpromised, together=attempt.together, note=attempt.note, final=attempt.final
            )
            if outcome is not None:
                return outcome
        raise AssertionError("the last attempt is final: it always stands")

    def _base(self, base: Base, fresh: Plans, kept: Plans) -> Plans | None:
        """The promises' plans that an attempt starts from.

        None if there are no such plans, or if an earlier attempt started from the same ones.
        """
        stored = self.problem.settings.stored_plans
        if base is Base.FRESH:
            return fresh
        if base is Base.STORED:
            if not stored or fresh is kept:
                return None
            self.admission.used_stored = True
            return kept
        if base is Base.ANEW:
            return planned_anew(self.admission)
        return kept if stored else fresh

    def _grants_made(self, allocated: Mapping[tuple[Base, Grants, bool], tuple[Plans, int] | None]) -> int:
        found = allocated.get((Base.FRESH, Grants.ALL, True))
        return 0 if found is None else found[1]

    def _most_grants(
        self, grants: Grants, allocated: Mapping[tuple[Base, Grants, bool], tuple[Plans, int] | None]
    ) -> int:
        if grants is Grants.HALF:
            return self._grants_made(allocated) // 2
        return EVERY_GRANT if grants is Grants.ALL else 0

    def _filled_afresh(self) -> Plans | None:
        """The promises filled from scratch; None if that fails, or if jobs at risk are protected.

        A refill could take the GPUs that newcomers left to jobs at risk.
        """
        admission = self.admission
        if admission.jobs_at_risk.rows():
            return None
        afresh, failed = admission.refilled(admission.rows)
        admission.used_stored = bool(failed)
        return None if failed else afresh

    def _allocated(
        self, base: Plans, unpromised: list[int], most_grants: int, *, hold: bool = True
    ) -> tuple[Plans, int]:
        """Plan the unpromised jobs beside the plans ``base`` and make up to ``most_grants`` grants.

        ``hold``: jobs keep their GPUs until a plan takes more GPUs or a job ends. Returns (plans, grants
        made).
        """
        problem, admission = self.problem, self.admission
        jobs = problem.jobs
        rows = np.array([*admission.own_rows(), *unpromised], dtype=np.int64)
        growing = rows[~jobs.locked[rows]]
        rules = self._growth_rules(growing)
        promised = np.array(admission.rows, dtype=np.int64)
        if not unpromised:
            beside = BesideGrants(
                promised, problem.due, problem.slack_seconds, problem.opened, problem.by_deadline,
                admission.offers,
            )  # fmt: skip
            plans, granted, pieces = granted_beside_promises(
                jobs, base, beside, growing, rules, most_grants, rows, hold
            )
            admission.work.add(promised.size + pieces)
            return plans, granted
        before = before_grants(
            base, promised, np.array(unpromised, dtype=np.int64), jobs.locked, problem.due,
            problem.slack_seconds, problem.opened,
        )  # fmt: skip
        admission.work.add(promised.size + before.timeline.pieces)
        start_order = np.zeros(problem.due.size, dtype=np.int64)
        before = self._with_unpromised(before, unpromised, start_order)
        grown = 0
        if self.growth is not None:
            plans, timeline, grown = self.growth(
                jobs, before.plans, growing, before.promised, before.due, before.timeline, rules, most_grants
            )
            before = before._replace(plans=plans, timeline=timeline)
        plans, granted = granted_and_held(
            jobs, before, Growing(growing, before.promised, before.due, problem.by_deadline, start_order),
            rules, most_grants - grown, rows, admission.offers, hold,
        )  # fmt: skip
        return plans, grown + granted

    def _with_unpromised(
        self, before: BeforeGrants, unpromised: list[int], start_order: IntArray
    ) -> BeforeGrants:
        """Plan jobs at risk to end as early as possible, then the others at their lowest level.

        Writes the serving order of the others to ``start_order``.
        """
        problem, at_risk = self.problem, self.admission.at_risk
        ending_early = [row for row in unpromised if row in at_risk]
        plans, timeline = plan_earliest_finish(
            problem, before.plans, self.admission.in_deadline_order(ending_early), before.timeline
        )
        order = np.array([row for row in unpromised if row not in ending_early], dtype=np.int64)
        start_order[order] = np.arange(order.size)
        plans, timeline = fill_unpromised(
            problem.jobs, plans, order, self._no_heads(), timeline, problem.slots
        )
        return before._replace(plans=plans, timeline=timeline)

    def _growth_rules(self, rows: IntArray) -> GrowthRules:
        """The rules for growth in the next slot.

        ``relief``: a GPU second saved later shortens the wait of each job by 1 / GPUs seconds, so by
        jobs / GPUs seconds in sum.
        """
        problem = self.problem
        relief = max(1, rows.size) / max(1, problem.gpus)
        gain = problem.settings.minimum_gain_iterations
        lasting = expected_seconds(problem) if self.experience else unknown_seconds(problem)
        return GrowthRules(problem.slots, problem.suffix, gain, lasting, relief)

    def _settled(
        self,
        plans: Plans,
        unpromised: list[int],
        *,
        together: bool,
        note: str | None = None,
        final: bool = False,
    ) -> Outcome | None:
        """Place the next slot of the plans and charge all pauses; None if that breaks a promise.

        With ``final`` there is no further attempt: promises that are late become at risk.
        """
        if together:
            found = self.budget.settled_together(plans, self.admission.rows)
            if found.verdict == BROKEN:
                return None
            if found.verdict == KEPT:
                changes = changes_of(self.problem.present_placement, found.changes)
                plans = plans._replace(finish=found.finish, gpu_time=found.gpu_time)
                return Outcome(plans, changes, (note,) if note else ())
        placed = self._placed(plans, unpromised, together=together, final=final)
        if placed is None:
            return None
        before = plans
        plans, occupancy = placed
        rows = self.admission.rows
        changes = changes_between(
            self.problem.present_placement, occupancy, self.budget.suspension_order(rows)
        )
        promised = set(rows)
        charged = [row for row in changes.pauses if row in promised]
        charges = NO_CHARGES.and_then(
            charged, [self.problem.origin] * len(charged), [changes.pauses[row] for row in charged]
        )
        affordable = self.budget.affordable(plans, rows, occupancy=occupancy, charges=charges)
        if affordable is None:
            if not final:
                return None
            affordable, late = self.budget.charged(plans, rows, occupancy=occupancy, charges=charges)
            self.admission.at_risk += late
            self.admission.rows = [row for row in rows if row not in set(late)]
        affordable = self._beside_mended_promises(before, affordable, unpromised)
        return Outcome(affordable, changes, (note,) if note else ())

    def _placed(
        self, plans: Plans, unpromised: list[int], *, together: bool, final: bool
    ) -> tuple[Plans, Occupancy] | None:
        """Place all jobs in the next slot; None if that fails. ``final``: see `placed_promises_first`."""
        slack = self.budget.slack(plans, self.admission.rows)
        if not together:
            return placed_promises_first(
                self.admission, self.seating, plans, unpromised, slack, shrink_promises=final
            )
        occupancy, failed = repack_together(self.seating, wanted_gpus(plans, self.problem.count), slack)
        return None if failed else (plans, occupancy)
