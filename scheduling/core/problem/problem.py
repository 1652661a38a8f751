"""One decision's problem as arrays, and the conversion of plans to a snapshot's form.

Times are seconds since ``now``. In the frozen head ``[now, next_slot_at)`` every job keeps its GPUs. Its
progress is accounted for here, so all other code plans from ``origin``, the next slot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from kernels.compiling import kernel
from scheduling.core.placement.buddy_blocks import Blocks, blocks_of
from scheduling.core.placement.present_placement import PresentPlacement
from scheduling.core.plans.reserve import reserved_gpus
from scheduling.core.plans.slots import Slots
from scheduling.core.plans.stored_plans import cut_stored, flatten, pin_head, with_offers
from scheduling.core.plans.timeline import Timeline, copy_timeline, new_timeline, take
from scheduling.core.problem.jobs_at_origin import job_arrays, judge_offers, offered_due
from scheduling.core.problem.kept_gpus import (
    blocked_addresses,
    blocked_beside_locked,
    gpus_of_locked,
    lock_ends,
)
from scheduling.core.question.arrays import (
    TIME_TOLERANCE,
    Draft,
    JobArrays,
    Placements,
    Plans,
    rows_where,
)
from scheduling.core.question.columns import JobColumns, columns_of
from scheduling.core.question.host_memory import short_of_memory, within_host_memory
from scheduling.core.question.known_ends import with_known_ends
from scheduling.core.question.snapshot import (
    Fill,
    FloatArray,
    HeldOffer,
    IntArray,
    PlannerSettings,
    ServerSnapshot,
    Snapshot,
    StoredPlan,
)
from scheduling.core.question.validation import check_columns, check_settings, check_snapshot

FEW_TIES = 16


@dataclass(frozen=True, slots=True)
class ClusterCapacity:
    """The cluster's usable GPUs."""

    #: The GPUs as aligned blocks.
    blocks: Blocks
    #: Number of usable GPUs.
    gpus: int
    #: Number of GPUs that may back promises.
    promise_gpus: int


@dataclass
class Problem:
    """Everything that the algorithms of one decision need. Held offers follow the jobs as extra rows."""

    #: The time of the decision, in seconds on the caller's axis.
    now: float
    #: The next slot boundary, on the caller's axis.
    next_slot_at: float
    #: The operator's choices.
    settings: PlannerSettings
    #: The jobs as given, without offers; ``count`` of them.
    columns: JobColumns
    #: Held offers.
    offers: tuple[HeldOffer, ...]
    #: Jobs and offers as they are at ``origin``.
    jobs: JobArrays
    #: When each row's last iteration must end, in seconds since ``now``; infinity without a deadline.
    due: FloatArray
    #: Stored plans, cut at ``origin``.
    stored: Plans
    #: Rank of each row by (deadline, submission, id), the order of Algorithm 1.
    by_deadline: IntArray
    #: Rank of each row by (submission, id).
    by_submission: IntArray
    #: The next slot, in seconds since ``now``.
    origin: float
    #: The usable GPUs as aligned blocks.
    blocks: Blocks
    #: Number of usable GPUs.
    gpus: int
    #: Number of GPUs that may back promises.
    promise_gpus: int
    #: Slack that a new promise of each row keeps for failures and late changes, in seconds.
    slack_seconds: FloatArray
    #: Addresses that may not be used at ``origin``.
    blocked: IntArray
    #: When each of these is free again, in seconds since ``now``.
    blocked_until: FloatArray
    #: What the policy noted about the cluster at its last decision.
    cluster_memory: FloatArray = field(default_factory=lambda: np.zeros(0))
    #: By newcomer's id: host memory of one worker that no server guarantees, in bytes.
    short_of_memory_bytes: Mapping[str, float] = field(default_factory=dict)
    #: Scratch array for a plan's times.
    scratch_time: FloatArray = field(default_factory=lambda: np.zeros(256))
    #: Scratch array for a plan's GPUs.
    scratch_gpus: IntArray = field(default_factory=lambda: np.zeros(256, dtype=np.int64))

    @cached_property
    def count(self) -> int:
        """Number of jobs, without held offers."""
        return self.columns.count

    @property
    def slot(self) -> float:
        """Seconds between two reallocations."""
        return self.settings.slot_seconds

    @cached_property
    def slots(self) -> Slots:
        """The grid of slots for kernels."""
        return Slots(float(self.origin), float(self.slot))

    @property
    def suffix(self) -> bool:
        """Whether progressive filling is the suffix variant."""
        return self.settings.fill is Fill.SUFFIX

    @cached_property
    def present_placement(self) -> PresentPlacement:
        """Which job holds which GPUs now."""
        columns = self.columns
        return PresentPlacement(
            ids=columns.ids,
            jobs=self.jobs,
            count=columns.count,
            held=Placements(columns.addresses, columns.offsets),
            gpus=columns.gpus,
            locked=columns.locked,
            blocks=self.blocks,
            blocked=self.blocked,
            by_submission=self.by_submission,
        )

    def placement(self, row: int) -> IntArray:
        """GPU addresses that the job of a row holds."""
        columns = self.columns
        return columns.addresses[columns.offsets[row] : columns.offsets[row + 1]]

    def open_timeline(self) -> Timeline:
        """Free capacity before any plan, without blocked GPUs and without those that locked jobs keep."""
        return copy_timeline(self.opened)

    @cached_property
    def opened(self) -> Timeline:
        """`open_timeline`, shared: callers must not change it."""
        timeline = new_timeline(self.origin, self.gpus, self.promise_gpus)
        if not self.blocked.size and not self.columns.locked.any():
            return timeline
        for until, gpus in sorted(Counter(self.blocked_until.tolist()).items()):
            timeline = take(timeline, self.origin, until, gpus, True)
        until_by_row = self.jobs.locked_until[: self.count]
        for until, gpus in gpus_of_locked(self.columns, until_by_row, self.blocks).items():
            timeline = take(timeline, self.origin, until, gpus, True)
        return timeline

    @cached_property
    def locked(self) -> list[int]:
        """Rows of the locked jobs, which keep their GPUs in this decision."""
        rows: list[int] = rows_where(self.jobs.locked).tolist()
        return rows

    @cached_property
    def newcomers(self) -> list[int]:
        """Rows of the newcomers, in the order in which they are decided."""
        rows: list[int] = rows_where(self.columns.newcomer).tolist()
        return rows

    @cached_property
    def promised(self) -> list[int]:
        """Rows with a promise that is not at risk, and held offers."""
        columns = self.columns
        held: list[int] = rows_where(columns.promised & ~columns.newcomer & ~columns.at_risk).tolist()
        return held + list(range(self.count, self.jobs.work.size))

    def accepts_offer(self, row: int) -> bool:
        """Whether the newcomer accepts an offer: only then it has a stored plan."""
        return bool(self.stored.length[row] > 0)

    @cached_property
    def has_pauses(self) -> bool:
        """Whether any level of any job has a pause."""
        return bool(self.jobs.pause.any())

    def scratch(self, pieces: int) -> Draft:
        """Scratch arrays for a plan on a timeline with ``pieces`` pieces."""
        if self.scratch_time.size < pieces + 8:
            self.scratch_time = np.zeros(2 * pieces + 8)
            self.scratch_gpus = np.zeros(2 * pieces + 8, dtype=np.int64)
        return Draft(self.scratch_time, self.scratch_gpus)

    def stored_plan(self, plans: Plans, index: int) -> StoredPlan:
        """One plan in a snapshot's form, with the frozen head in front."""
        return self.stored_plans(plans, [index])[0]

    def stored_plans(self, plans: Plans, rows: list[int]) -> list[StoredPlan]:
        """Plans of several jobs in a snapshot's form, with the frozen head in front."""
        now = self.now
        start, gpus, offsets = flatten(
            plans, np.array(rows, dtype=np.int64), self.jobs.gpus, self.origin > TIME_TOLERANCE
        )
        start += now
        if self.origin > TIME_TOLERANCE:
            # Use the caller's exact slot boundary: float addition may have shifted it.
            start[np.abs(start - self.next_slot_at) <= TIME_TOLERANCE] = self.next_slot_at
        finish = (plans.finish + now).tolist()
        bounds = offsets.tolist()
        return [
            StoredPlan(
                start=start[bounds[k] : bounds[k + 1] - 1],
                end=start[bounds[k] + 1 : bounds[k + 1]],
                gpus=gpus[bounds[k] : bounds[k + 1] - 1],
                finish_at=finish[row],
            )
            for k, row in enumerate(rows)
        ]


def build_problem(snapshot: Snapshot, memory_width: int = 0, *, measured: bool = False) -> Problem:
    """Read a snapshot. Raises ValueError for an inconsistent one.

    Jobs are sorted by (submission, id), so the caller's order has no effect. ``memory_width``: number of
    columns that the policy notes for each job. ``measured``: see `problem_from`.
    """
    check_snapshot(snapshot)
    snapshot = with_known_ends(snapshot)
    short_of_memory_bytes = short_of_memory(snapshot)
    snapshot = within_host_memory(snapshot)
    jobs = sorted(snapshot.jobs, key=lambda job: (job.submitted_at, job.id))
    offers = tuple(
        offer
        for offer in sorted(snapshot.held_offers, key=lambda offer: offer.id)
        if offer.valid_until > snapshot.now
    )
    origin = max(0.0, float(snapshot.next_slot_at - snapshot.now))
    columns = columns_of(jobs, memory_width)
    stored = cut_stored([job.stored_plan for job in jobs], snapshot.now, origin)
    problem = problem_from(
        now=float(snapshot.now),
        next_slot_at=float(snapshot.next_slot_at),
        settings=snapshot.settings,
        columns=columns,
        stored=stored,
        capacity=capacity_of(snapshot.servers, snapshot.settings.reserve_servers),
        offers=offers,
        blocked=blocked_addresses(snapshot, origin),
        cluster_memory=np.array(snapshot.memory, dtype=np.float64),
        measured=measured,
    )
    problem.short_of_memory_bytes = short_of_memory_bytes
    return problem


def capacity_of(servers: Sequence[ServerSnapshot], reserve_servers: int) -> ClusterCapacity:
    """The usable GPUs of the servers. All but the reserve's and the borrowed ones may back promises.

    Standby servers, which are not usable, count towards the reserve: they take lost servers' places.
    """
    own = tuple(replace(server, usable=False) if server.on_loan else server for server in servers)
    blocks = blocks_of(own)
    gpus = int(blocks.size.sum())
    reserve = reserved_gpus(
        [server.gpus for server in own if server.usable],
        reserve_servers,
        standby_gpus=[server.gpus for server in own if server.standby],
    )
    return ClusterCapacity(blocks, gpus, max(0, gpus - reserve))


def problem_from(
    *,
    now: float,
    next_slot_at: float,
    settings: PlannerSettings,
    columns: JobColumns,
    stored: Plans,
    capacity: ClusterCapacity,
    offers: tuple[HeldOffer, ...] = (),
    blocked: dict[int, float] | None = None,
    cluster_memory: FloatArray | None = None,
    measured: bool = False,
) -> Problem:
    """The arrays of one decision, from columns in the order (submission, id).

    ``stored``: one row for each job, times since ``now``, cut at the next slot. ``blocked``: for each blocked
    address, the seconds since ``now`` (a slot boundary) until which it may not be used. ``measured``: jobs
    may run on every measured GPU count, even without rising throughput, instead of the levels of their
    scaling curve.
    """
    check_settings(settings)
    check_columns(columns)
    origin = max(0.0, next_slot_at - now)
    curves = columns.measured if measured else columns.curves
    slots = Slots(origin, float(settings.slot_seconds))
    ends = lock_ends(columns, blocked or {}, slots)
    jobs = job_arrays(columns, curves, offers, origin, ends, capacity.gpus)
    due = columns.deadline_at - columns.finishing - now
    by_deadline = _dense_ranks(columns.deadline_at, len(offers))
    if offers:
        due = np.concatenate((due, [offered_due(offer, now) for offer in offers]))
        stored = with_offers(stored, offers, now, origin)
        judge_offers(jobs, stored, due, columns.count)
    for row in rows_where(columns.locked).tolist():
        stored = pin_head(stored, row, jobs.gpus[row], origin, jobs.locked_until[row])
    addresses, until = blocked_beside_locked(blocked or {}, columns, capacity.blocks)
    return Problem(
        now=now,
        next_slot_at=next_slot_at,
        settings=settings,
        columns=columns,
        offers=offers,
        jobs=jobs,
        due=due,
        stored=stored,
        by_deadline=by_deadline,
        by_submission=np.arange(due.size),
        origin=origin,
        blocks=capacity.blocks,
        gpus=capacity.gpus,
        promise_gpus=capacity.promise_gpus,
        slack_seconds=_slack_of_rows(settings, columns, offers),
        blocked=addresses,
        blocked_until=until,
        cluster_memory=np.zeros(0) if cluster_memory is None else cluster_memory,
    )


def _slack_of_rows(settings: PlannerSettings, columns: JobColumns, offers: Sequence[HeldOffer]) -> FloatArray:
    """Slack that a new promise of each row keeps. Without a reserve nothing is kept for failures."""
    own = columns.failure_slack
    if offers:
        offered = [0.0 if offer.job is None else offer.job.failure_slack_seconds for offer in offers]
        own = np.concatenate((own, offered))
    if not settings.reserve_servers:
        return np.full(own.size, settings.change_slack_seconds)
    slack: FloatArray = settings.change_slack_seconds + settings.reserve_slack_seconds + own
    return slack


@kernel
def _ranks_of(order: IntArray, values: FloatArray, further: int) -> IntArray:
    """Rank of each row, ``further`` rows following at the end. ``order`` sorts the others by value, equal
    values in any order: these are ranked by row, and ``order`` is changed to that."""
    ranks = np.empty(order.size + further, dtype=np.int64)
    begin = 0
    while begin < order.size:
        value = values[order[begin]]
        end = begin + 1
        while end < order.size and values[order[end]] == value:
            end += 1
        if end - begin > 1:
            _sort(order[begin:end])
        for place in range(begin, end):
            ranks[order[place]] = place
        begin = end
    for place in range(order.size, ranks.size):
        ranks[place] = place
    return ranks


@kernel
def _sort(numbers: IntArray) -> None:
    """Sort in place. Mostly two or three numbers are equal: too few for a sort that needs an array."""
    if numbers.size > FEW_TIES:
        numbers[:] = np.sort(numbers)
        return
    for last in range(1, numbers.size):
        number = numbers[last]
        place = last
        while place > 0 and numbers[place - 1] > number:
            numbers[place] = numbers[place - 1]
            place -= 1
        numbers[place] = number


def _dense_ranks(deadline_at: FloatArray, offers: int) -> IntArray:
    """Rank of each row by deadline; ties go by row, since rows are in the order (submission, id)."""
    order = deadline_at.argsort()  # a stable sort takes several times as long
    ranks: IntArray = _ranks_of(order, deadline_at, offers)
    return ranks
