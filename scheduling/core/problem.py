"""A snapshot turned into arrays, and plans turned back into the snapshot's terms.

Times inside are seconds since ``now``. The frozen head ``[now, next_slot_at)``, in which every job
keeps its GPUs, is worked off here: everything later plans from ``origin``, the next slot.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain

import numpy as np

from scheduling.core.arrays import TIME_TOLERANCE, JobArrays, Plans, no_plans, set_plan
from scheduling.core.blocks import NOWHERE, Blocks, blocks_of
from scheduling.core.compiling import kernel
from scheduling.core.filling import slot_end
from scheduling.core.reserve import reserved_gpus
from scheduling.core.snapshot import (
    Fill,
    FloatArray,
    HeldOffer,
    IntArray,
    JobSnapshot,
    ScalingCurve,
    ServiceClass,
    Snapshot,
    StoredPlan,
)
from scheduling.core.timeline import new_timeline, take


@dataclass
class Problem:
    """Everything the algorithms of one decision need. Held offers follow the jobs as extra rows.

    ``by_deadline``: rank of each row in the order (deadline, submission, id), which is the order
    of Algorithm 1; ``by_submission``: rank in the order (submission, id).
    """

    snapshot: Snapshot
    offers: tuple[HeldOffer, ...]
    jobs: JobArrays
    due: FloatArray
    stored: Plans
    by_deadline: IntArray
    by_submission: IntArray
    origin: float
    blocks: Blocks
    gpus: int
    promise_gpus: int
    slack_seconds: float
    blocked: IntArray
    blocked_until: FloatArray
    scratch_time: FloatArray = field(default_factory=lambda: np.zeros(256))
    scratch_gpus: IntArray = field(default_factory=lambda: np.zeros(256, dtype=np.int64))

    @property
    def slot(self) -> float:
        """Seconds between two reallocations."""
        return float(self.snapshot.settings.slot_seconds)

    @property
    def suffix(self) -> bool:
        """Whether progressive filling is the suffix variant."""
        return self.snapshot.settings.fill is Fill.SUFFIX

    @cached_property
    def index_of(self) -> dict[str, int]:
        """Row of each job."""
        return {job.id: index for index, job in enumerate(self.snapshot.jobs)}

    def open_timeline(self) -> tuple[FloatArray, IntArray, int]:
        """Capacity before any plan: without blocked GPUs, and without locked jobs' next slot."""
        times, free, count = self._open
        return times.copy(), free.copy(), count

    @cached_property
    def _open(self) -> tuple[FloatArray, IntArray, int]:
        timeline = new_timeline(self.origin, self.gpus, self.promise_gpus)
        for until in np.unique(self.blocked_until).tolist():
            gpus = int((self.blocked_until == until).sum())
            timeline = take(*timeline, self.origin, until, gpus, True)
        locked = sum(self._usable_gpus(row) for row in self.locked)
        if locked:
            timeline = take(*timeline, self.origin, self.origin + self.slot, locked, True)
        times, free, count = timeline
        return times, free, int(count)

    def _usable_gpus(self, row: int) -> int:
        """GPUs that a job takes out of the usable ones: those on lost servers count no more."""
        job = self.snapshot.jobs[row]
        block_of = self.blocks.block_of
        if not job.placement:
            return job.gpus_now
        return sum(block_of[address] != NOWHERE for address in job.placement if address < block_of.size)

    @cached_property
    def locked(self) -> list[int]:
        """Rows that keep their GPUs whatever is decided."""
        return np.flatnonzero(self.jobs.locked).tolist()

    @cached_property
    def newcomers(self) -> list[int]:
        """Newcomers in the order in which they are decided."""
        newcomers = [index for index, job in enumerate(self.snapshot.jobs) if job.newcomer]
        return sorted(newcomers, key=lambda index: int(self.by_submission[index]))

    @cached_property
    def promised(self) -> list[int]:
        """Rows that hold a promise already, held offers included."""
        held = [
            index
            for index, job in enumerate(self.snapshot.jobs)
            if job.promised and not job.newcomer and not job.at_risk
        ]
        return held + list(range(len(self.snapshot.jobs), len(self.jobs.work)))

    def has_pauses(self) -> bool:
        """Whether any start, move or rescale costs time."""
        return bool(self.jobs.pause.any())

    def scratch(self, pieces: int) -> tuple[FloatArray, IntArray]:
        """Working room for a plan filled on a timeline of that many pieces."""
        if self.scratch_time.size < pieces + 8:
            self.scratch_time = np.zeros(2 * pieces + 8)
            self.scratch_gpus = np.zeros(2 * pieces + 8, dtype=np.int64)
        return self.scratch_time, self.scratch_gpus

    def stored_plan(self, plans: Plans, index: int) -> StoredPlan:
        """One plan in the snapshot's terms, with the frozen head in front."""
        return self.stored_plans(plans, [index])[0]

    def stored_plans(self, plans: Plans, rows: list[int]) -> list[StoredPlan]:
        """Plans of several jobs in the snapshot's terms, with the frozen head in front."""
        now = self.snapshot.now
        start, gpus, offsets = flatten(
            plans, np.array(rows, dtype=np.int64), self.jobs.gpus, self.origin > TIME_TOLERANCE
        )
        start += now
        if self.origin > TIME_TOLERANCE:
            # Exactly the caller's boundary, not one that float addition moved.
            start[np.abs(start - self.snapshot.next_slot_at) <= TIME_TOLERANCE] = self.snapshot.next_slot_at
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


def build_problem(snapshot: Snapshot) -> Problem:
    """Read a snapshot. Raises ValueError where it contradicts itself.

    Jobs are put in the order (submission, id), so that the caller's order decides nothing.
    """
    _check(snapshot)
    snapshot = replace(
        snapshot,
        jobs=tuple(sorted(snapshot.jobs, key=lambda job: (job.submitted_at, job.id))),
        held_offers=tuple(sorted(snapshot.held_offers, key=lambda offer: offer.id)),
    )
    origin = max(0.0, float(snapshot.next_slot_at - snapshot.now))
    blocks = blocks_of(snapshot.servers)
    gpus = int(blocks.size.sum())
    usable = [server.gpus for server in snapshot.servers if server.usable]
    blocked, blocked_until = _blocked(snapshot, blocks, origin)
    settings = snapshot.settings
    offers = tuple(offer for offer in snapshot.held_offers if offer.valid_until > snapshot.now)
    jobs = _job_arrays(snapshot, offers, origin, gpus)
    offered = [offer.job for offer in offers]
    due = np.array(
        [
            job.deadline_at - job.finishing_seconds if job is not None else np.inf
            for job in [*snapshot.jobs, *offered]
        ]
    )
    due -= snapshot.now
    plans = [job.stored_plan for job in snapshot.jobs] + [offer.plan for offer in offers]
    stored = _stored(plans, snapshot.now, origin)
    for row in np.flatnonzero(jobs.locked).tolist():
        stored = pin_head(stored, row, jobs.gpus[row], origin, float(settings.slot_seconds))
    return Problem(
        snapshot=snapshot,
        offers=offers,
        jobs=jobs,
        due=due,
        stored=stored,
        by_deadline=_ranks([(job.deadline_at, job.submitted_at, job.id) for job in snapshot.jobs], offers),
        by_submission=_ranks([(job.submitted_at, job.id) for job in snapshot.jobs], offers),
        origin=origin,
        blocks=blocks,
        gpus=gpus,
        promise_gpus=max(0, gpus - reserved_gpus(usable, settings.reserve_servers)),
        slack_seconds=settings.reserve_slack_seconds if settings.reserve_servers > 0 else 0.0,
        blocked=blocked,
        blocked_until=blocked_until,
    )


def _check(snapshot: Snapshot) -> None:
    if snapshot.settings.slot_seconds <= 0:
        raise ValueError("slot_seconds must be positive")
    seen: set[str] = set()
    for job in snapshot.jobs:
        if job.id in seen:
            raise ValueError(f"job {job.id} appears twice in the snapshot")
        seen.add(job.id)
        if job.placement and len(job.placement) != job.gpus_now:
            raise ValueError(f"job {job.id} holds {job.gpus_now} GPUs but lists {len(job.placement)}")
        if job.service_class is ServiceClass.BEST_EFFORT and job.promised:
            raise ValueError(f"best-effort job {job.id} cannot hold a promise")


def _blocked(snapshot: Snapshot, blocks: Blocks, origin: float) -> tuple[IntArray, FloatArray]:
    """Usable addresses that are blocked beyond ``origin``, each with the slot end until which.

    GPUs of locked jobs are left out: their jobs stay where they are.
    """
    until: dict[int, float] = {}
    for block in snapshot.blocked:
        end = float(slot_end(block.until - snapshot.now, origin, snapshot.settings.slot_seconds))
        if end > origin + TIME_TOLERANCE:
            for address in block.addresses:
                until[address] = max(end, until.get(address, 0.0))
    for job in snapshot.jobs:
        if job.locked:
            for address in job.placement:
                until.pop(address, None)
    addresses = sorted(
        address
        for address in until
        if 0 <= address < blocks.block_of.size and blocks.block_of[address] != NOWHERE
    )
    return (
        np.array(addresses, dtype=np.int64),
        np.array([until[address] for address in addresses], dtype=np.float64),
    )


def _ranks(
    keys: list[tuple[float, str]] | list[tuple[float, float, str]], offers: tuple[object, ...]
) -> IntArray:
    order = sorted(range(len(keys)), key=lambda index: keys[index])
    ranks = np.empty(len(keys) + len(offers), dtype=np.int64)
    ranks[order] = np.arange(len(keys))
    ranks[len(keys) :] = np.arange(len(keys), len(keys) + len(offers))
    return ranks


def _job_arrays(
    snapshot: Snapshot, offers: tuple[HeldOffer, ...], origin: float, cluster_gpus: int
) -> JobArrays:
    offered = [offer.job for offer in offers]
    curves = [job.curve for job in snapshot.jobs]
    curves += [offer.job.curve if offer.job is not None else _offer_curve(offer) for offer in offers]
    rows = len(curves)
    sizes = np.array([curve.levels.size for curve in curves], dtype=np.int64)
    width = max(1, int(sizes.max(initial=1)))
    inside = np.arange(width) < sizes[:, None]
    levels = np.full((rows, width), np.iinfo(np.int64).max)
    throughput = np.zeros((rows, width))
    pause = np.zeros((rows, width))
    if rows:
        levels[inside] = np.concatenate([curve.levels for curve in curves])
        throughput[inside] = np.concatenate([curve.throughput for curve in curves])
        pause[inside] = np.concatenate([curve.pause_seconds for curve in curves])
    extra = len(offers)

    def column(name: str, dtype: type = float) -> np.ndarray:
        values = [getattr(job, name) for job in snapshot.jobs]
        values += [getattr(job, name) if job is not None else 0 for job in offered]
        return np.array(values, dtype=dtype)

    gpus = column("gpus_now", np.int64)
    gpus[rows - extra :] = 0
    pause_left = column("pause_left_seconds")
    work = column("remaining_iterations")
    rate = np.where((levels == gpus[:, None]) & (gpus[:, None] > 0), throughput, 0.0).sum(axis=1)
    productive = np.maximum(0.0, origin - pause_left)
    ends = (work <= rate * (productive + TIME_TOLERANCE)) & ((rate > 0) | (work <= 0))
    needed = np.divide(work, rate, out=np.zeros(rows), where=rate > 0)
    finished_at = np.where(ends, np.where(work > 0, pause_left + needed, 0.0), np.inf)
    finished_at[rows - extra :] = np.inf
    return JobArrays(
        levels=levels,
        throughput=throughput,
        pause=pause,
        level_count=(levels <= cluster_gpus).sum(axis=1),
        work=np.where(ends, 0.0, work - rate * productive),
        gpus=gpus,
        pause_left=np.where(gpus > 0, np.maximum(0.0, pause_left - origin), 0.0),
        finished_at=finished_at,
        finishing=column("finishing_seconds"),
        locked=column("locked", np.bool_),
        earliest=np.full(rows, origin),
    )


def _offer_curve(offer: HeldOffer) -> ScalingCurve:
    """Levels of an offer's plan, so that its GPUs can be placed in the forecast."""
    levels = np.unique(offer.plan.gpus[offer.plan.gpus > 0]).astype(np.int64)
    return ScalingCurve(levels, np.ones(levels.size), np.zeros(levels.size))


def _stored(plans: list[StoredPlan | None], now: float, origin: float) -> Plans:
    """Stored plans cut at the next slot."""
    pieces = np.array([plan.start.size if plan is not None else -1 for plan in plans], dtype=np.int64)
    held = [plan for plan in plans if plan is not None and plan.start.size]
    empty: list[FloatArray] = [np.zeros(0)]
    cut: Plans = _cut(
        no_plans(len(plans)),
        pieces,
        np.concatenate([plan.start for plan in held] or empty) - now,
        np.concatenate([plan.end for plan in held] or empty) - now,
        np.concatenate([plan.gpus for plan in held] or empty).astype(np.int64),
        origin,
    )
    return cut


@kernel
def _cut(plans, pieces, start, end, gpus, origin):  # type: ignore[no-untyped-def]
    """Keep of each plan what lies after ``origin``; equal neighbours become one piece."""
    longest = 0
    for count in pieces:
        longest = max(longest, count)
    out_time = np.zeros(2 * longest + 2)
    out_gpus = np.zeros(2 * longest + 2, dtype=np.int64)
    offset = 0
    for job in range(pieces.size):
        if pieces[job] < 0:
            continue
        out_time[0] = origin
        out_gpus[0] = 0
        written = np.int64(1)
        for piece in range(offset, offset + pieces[job]):
            if end[piece] <= origin + TIME_TOLERANCE:
                continue
            begin = max(start[piece], origin)
            for side in range(2):
                at = begin if side == 0 else end[piece]
                level = gpus[piece] if side == 0 else 0
                if at <= out_time[written - 1] + TIME_TOLERANCE:
                    out_gpus[written - 1] = level
                    if written > 1 and out_gpus[written - 2] == level:
                        written -= 1
                elif out_gpus[written - 1] != level:
                    out_time[written] = at
                    out_gpus[written] = level
                    written += 1
        plans = set_plan(plans, job, out_time, out_gpus, written, np.inf, 0.0)
        offset += pieces[job]
    return plans


@kernel
def pin_head(plans, job, gpus, origin, slot):  # type: ignore[no-untyped-def]
    """Let a locked job hold ``gpus`` GPUs through the next slot, then follow its plan."""
    count = plans.length[job]
    out_time = np.zeros(count + 3)
    out_gpus = np.zeros(count + 3, dtype=np.int64)
    out_time[0] = origin
    out_gpus[0] = gpus
    written = np.int64(1)
    after = np.int64(0)
    first_later = 0
    while first_later < count and plans.time[job, first_later] <= origin + slot + TIME_TOLERANCE:
        after = plans.gpus[job, first_later]
        first_later += 1
    if after != gpus or first_later == count:
        out_time[1] = origin + slot
        out_gpus[1] = after
        written += 1
    for piece in range(first_later, count):
        out_time[written] = plans.time[job, piece]
        out_gpus[written] = plans.gpus[job, piece]
        written += 1
    plans.reserved_until[job] = origin + slot
    return set_plan(plans, job, out_time, out_gpus, written, np.inf, 0.0)


@kernel
def flatten(plans, rows, head_gpus, with_head):  # type: ignore[no-untyped-def]
    """Concatenate the plans of ``rows``; ``with_head`` puts the frozen head's piece in front."""
    total = 0
    for row in rows:
        total += plans.length[row] + 1
    start = np.zeros(total)
    gpus = np.zeros(total, dtype=np.int64)
    offsets = np.zeros(rows.size + 1, dtype=np.int64)
    written = 0
    for position in range(rows.size):
        row = rows[position]
        begun = written
        if with_head:
            start[written] = 0.0
            gpus[written] = head_gpus[row]
            written += 1
        for piece in range(plans.length[row]):
            last = piece == plans.length[row] - 1
            if written > begun and gpus[written - 1] == plans.gpus[row, piece] and not last:
                continue
            start[written] = plans.time[row, piece]
            gpus[written] = plans.gpus[row, piece]
            written += 1
        offsets[position + 1] = written
    return start, gpus, offsets


def placements_of(jobs: tuple[JobSnapshot, ...]) -> tuple[IntArray, IntArray]:
    """All placements in one array, and where each job's part begins."""
    lengths = np.array([0] + [len(job.placement) for job in jobs], dtype=np.int64)
    addresses = np.fromiter(
        chain.from_iterable(job.placement for job in jobs), dtype=np.int64, count=int(lengths.sum())
    )
    return addresses, np.cumsum(lengths)
