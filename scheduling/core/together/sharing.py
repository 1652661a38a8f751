"""Convert GPU addresses of jobs to workers on servers, and back.

Lyra's algorithms count workers on servers (`fleet.py`); the platform assigns GPU addresses. To Lyra all GPUs
of a server are alike. So a job keeps the GPUs that it holds on a server and takes the lowest free addresses
there for the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kernels.compiling import kernel
from scheduling.core.lyra.base_and_flexible import Demands
from scheduling.core.lyra.fleet import Fleet, Speeds, WorkerMap
from scheduling.core.lyra.reclaiming.effects import effects_of
from scheduling.core.question.arrays import BoolArray, Placements
from scheduling.core.question.columns import JobColumns, regather
from scheduling.core.question.decision import REASONS, Change, ChangeKind
from scheduling.core.question.snapshot import IntArray

NOBODY, BLOCKED = -1, -2


@dataclass(frozen=True)
class Servers:
    """Servers as ranges of GPU addresses; together they cover all addresses."""

    #: The first address of each server.
    first: IntArray
    #: GPUs of each server, including servers that may not be used.
    gpus: IntArray

    def server_of(self) -> IntArray:
        """The server of every address."""
        return np.repeat(np.arange(self.gpus.size), self.gpus)


@kernel
def count_workers(
    addresses: IntArray,
    offsets: IntArray,
    flexible: BoolArray,
    server_of: IntArray,
    gpus_per_worker: IntArray,
) -> WorkerMap:
    """The worker map of jobs; job i holds ``addresses[offsets[i]:offsets[i + 1]]``.

    ``flexible`` marks addresses that flexible workers hold.
    """
    jobs = offsets.size - 1
    begin = np.zeros(jobs + 1, dtype=np.int64)
    server = np.empty(addresses.size, dtype=np.int64)
    base = np.zeros(addresses.size, dtype=np.int64)
    extra = np.zeros(addresses.size, dtype=np.int64)
    count = 0
    for job in range(jobs):
        last = NOBODY
        for position in offsets[job] + np.argsort(
            addresses[offsets[job] : offsets[job + 1]], kind="mergesort"
        ):
            if server_of[addresses[position]] != last:
                last = server_of[addresses[position]]
                server[count] = last
                count += 1
            if flexible[position]:
                extra[count - 1] += 1
            else:
                base[count - 1] += 1
        for entry in range(begin[job], count):
            base[entry] //= gpus_per_worker[job]
            extra[entry] //= gpus_per_worker[job]
        begin[job + 1] = count
    return WorkerMap(begin, server[:count].copy(), base[:count].copy(), extra[:count].copy())


@kernel
def _kept(
    workers: WorkerMap,
    gpus_per_worker: IntArray,
    held: IntArray,
    held_offsets: IntArray,
    first: IntArray,
    gpus: IntArray,
    blocked: IntArray,
) -> tuple[IntArray, IntArray]:
    """(job that keeps each address, GPUs that each entry of the map still lacks)."""
    owner = np.full(gpus.sum(), NOBODY)
    for job in range(held_offsets.size - 1):
        for position in range(held_offsets[job], held_offsets[job + 1]):
            owner[held[position]] = job
    kept = np.full(owner.size, NOBODY)
    missing = np.zeros(workers.server.size, dtype=np.int64)
    for job in range(held_offsets.size - 1):
        for entry in range(workers.offsets[job], workers.offsets[job + 1]):
            wanted = (workers.base[entry] + workers.flexible[entry]) * gpus_per_worker[job]
            low = first[workers.server[entry]]
            for address in range(low, low + gpus[workers.server[entry]]):
                if wanted > 0 and owner[address] == job:
                    kept[address] = job
                    wanted -= 1
            missing[entry] = wanted
    for address in blocked:
        if kept[address] == NOBODY:
            kept[address] = BLOCKED
    return kept, missing


@kernel
def addresses_for_workers(
    workers: WorkerMap,
    gpus_per_worker: IntArray,
    held: IntArray,
    held_offsets: IntArray,
    first: IntArray,
    gpus: IntArray,
    blocked: IntArray,
) -> tuple[IntArray, IntArray, BoolArray, BoolArray]:
    """Assign GPU addresses to the workers of a map.

    Returns (addresses ascending by job, offsets, marks of flexible ones, whether each job's GPUs changed).
    ``held`` and ``held_offsets`` are the present addresses; ``first`` and ``gpus`` are those of `Servers`.
    """
    jobs = workers.offsets.size - 1
    owner, missing = _kept(workers, gpus_per_worker, held, held_offsets, first, gpus, blocked)
    offsets = np.zeros(jobs + 1, dtype=np.int64)
    addresses = np.empty(owner.size, dtype=np.int64)
    flexible = np.zeros(owner.size, dtype=np.bool_)
    changed = np.zeros(jobs, dtype=np.bool_)
    position = 0
    for job in range(jobs):
        for entry in range(workers.offsets[job], workers.offsets[job + 1]):
            low = first[workers.server[entry]]
            base_left = workers.base[entry] * gpus_per_worker[job]
            changed[job] |= missing[entry] > 0
            for address in range(low, low + gpus[workers.server[entry]]):
                if owner[address] == NOBODY and missing[entry] > 0:
                    owner[address] = job
                    missing[entry] -= 1
                if owner[address] == job:
                    addresses[position] = address
                    flexible[position] = base_left <= 0
                    base_left -= 1
                    position += 1
        offsets[job + 1] = position
        changed[job] |= position - offsets[job] != held_offsets[job + 1] - held_offsets[job]
    return addresses[:position].copy(), offsets, flexible[:position].copy(), changed


@dataclass(frozen=True)
class Sharing:
    """What Lyra's algorithms see of a problem beside its columns."""

    #: All servers as ranges of addresses.
    servers: Servers
    #: The usable servers as Lyra's algorithms see them.
    fleet: Fleet
    #: Marks GPUs that flexible workers hold, in the order of the columns' addresses.
    flexible: BoolArray
    #: The jobs' base and flexible demands.
    demands: Demands
    #: Addresses on which no job may be placed now; the fleet does not count them.
    blocked: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    #: Marks jobs that are not part of the decision (`set_aside`); None marks no job.
    aside: BoolArray | None = None
    #: Whether borrowed servers have the cluster's own kind of GPU.
    same_kind: bool = False

    def workers(self, columns: JobColumns) -> WorkerMap:
        """The present worker map, without workers on servers that may not be used."""
        workers: WorkerMap = count_workers(
            columns.addresses,
            columns.offsets,
            self.flexible,
            self.servers.server_of(),
            self.demands.gpus_per_worker,
        )
        if self.aside is not None:
            workers = workers_in(workers, ~self.aside)
        return usable_workers(workers, self.fleet)


@dataclass(frozen=True)
class SharedPlacements:
    """Placements after a division of owned and on-loan servers."""

    #: GPU addresses of every job.
    placements: Placements
    #: Marks addresses that flexible workers hold.
    flexible: BoolArray
    #: Role of every server.
    role: IntArray
    #: Changes of jobs, in an order in which GPUs are free when needed.
    changes: tuple[Change, ...]
    #: The job of each change.
    rows: tuple[int, ...]


def place(
    workers: WorkerMap,
    role: IntArray,
    gpus_per_worker: IntArray,
    held: Placements,
    servers: Servers,
    ids: Sequence[str],
    pause_seconds: Callable[[int, int], float],
    blocked: IntArray,
) -> SharedPlacements:
    """GPU addresses for a worker map, and the changes that lead there; jobs that give up GPUs come first.

    ``ids``: job ids by row. ``pause_seconds(row, gpus)``: the pause of a change to that number of GPUs.
    """
    addresses, offsets, flexible, changed = addresses_for_workers(
        workers, gpus_per_worker, held.addresses, held.offsets, servers.first, servers.gpus, blocked
    )
    placements = Placements(addresses, offsets)
    before, after = np.diff(held.offsets), np.diff(offsets)
    rows = np.flatnonzero(changed)
    rows = rows[np.argsort((after - before)[rows], kind="stable")]
    changes = []
    for row in rows.tolist():
        kind = kind_of(int(before[row]), int(after[row]))
        gpus = placements.of(row)
        pause = 0.0 if kind is ChangeKind.SUSPEND else float(pause_seconds(row, len(gpus)))
        changes.append(Change(ids[row], kind, int(before[row]), int(after[row]), gpus, pause, REASONS[kind]))
    return SharedPlacements(placements, flexible, role, tuple(changes), tuple(rows.tolist()))


def held_by(columns: JobColumns, rows: BoolArray) -> Placements:
    """The GPUs of the jobs that ``rows`` marks; other jobs hold none."""
    addresses, offsets = regather(
        columns.addresses, columns.offsets, np.where(rows, np.arange(rows.size), -1)
    )
    return Placements(addresses, offsets)


def workers_in(workers: WorkerMap, rows: BoolArray) -> WorkerMap:
    """The workers of the jobs that ``rows`` marks; other jobs have none."""
    inside, offsets = _entries_of(workers.offsets, rows)
    return WorkerMap(offsets, workers.server[inside], workers.base[inside], workers.flexible[inside])


def speeds_of(speeds: Speeds, rows: BoolArray) -> Speeds:
    """The rates of the jobs that ``rows`` marks; other jobs cannot run."""
    inside, offsets = _entries_of(speeds.offsets, rows)
    return Speeds(offsets, speeds.workers[inside], speeds.rate[inside])


def _entries_of(offsets: IntArray, rows: BoolArray) -> tuple[BoolArray, IntArray]:
    """Marks the entries of the jobs that ``rows`` marks, and their new offsets."""
    counts = np.diff(offsets)
    return np.repeat(rows, counts), np.concatenate(([0], np.cumsum(np.where(rows, counts, 0))))


def set_aside(sharing: Sharing, columns: JobColumns, rows: BoolArray) -> Sharing:
    """The same without the marked jobs, which keep their GPUs. `put_back` adds their GPUs to the outcome."""
    if not rows.any():
        return sharing
    theirs = columns.addresses[np.repeat(rows, np.diff(columns.offsets))]
    taken = np.bincount(sharing.servers.server_of()[theirs], minlength=sharing.servers.gpus.size)
    fleet, demands = sharing.fleet, sharing.demands
    return replace(
        sharing,
        fleet=fleet._replace(gpus=np.maximum(0, fleet.gpus - taken)),
        demands=demands._replace(owned=speeds_of(demands.owned, ~rows), lent=speeds_of(demands.lent, ~rows)),
        blocked=np.concatenate((sharing.blocked, theirs)),
        aside=rows,
    )


def put_back(shared: SharedPlacements, sharing: Sharing, columns: JobColumns) -> SharedPlacements:
    """The placements together with the GPUs of the jobs that were set aside."""
    if sharing.aside is None:
        return shared
    kept, held = np.repeat(sharing.aside, np.diff(columns.offsets)), np.diff(columns.offsets)
    counts = np.where(sharing.aside, held, np.diff(shared.placements.offsets))
    addresses, flexible = (
        np.empty(int(counts.sum()), dtype=np.int64),
        np.zeros(int(counts.sum()), dtype=np.bool_),
    )
    theirs = np.repeat(sharing.aside, counts)
    addresses[theirs], addresses[~theirs] = columns.addresses[kept], shared.placements.addresses
    flexible[theirs], flexible[~theirs] = sharing.flexible[kept], shared.flexible
    placements = Placements(addresses, np.concatenate(([0], np.cumsum(counts))))
    return replace(shared, placements=placements, flexible=flexible)


def joined(one: WorkerMap, other: WorkerMap) -> WorkerMap:
    """Join two worker maps of different jobs."""
    counts = np.diff(one.offsets) + np.diff(other.offsets)
    jobs = np.arange(counts.size)
    owner = np.concatenate((np.repeat(jobs, np.diff(one.offsets)), np.repeat(jobs, np.diff(other.offsets))))
    order = np.argsort(owner, kind="stable")
    return WorkerMap(
        np.concatenate(([0], np.cumsum(counts))),
        *(np.concatenate(pair)[order] for pair in zip(one[1:], other[1:], strict=True)),
    )


def usable_workers(workers: WorkerMap, fleet: Fleet) -> WorkerMap:
    """The worker map without workers on servers that may not be used: reclaimed or lost ones."""
    job_of = np.repeat(np.arange(workers.offsets.size - 1), np.diff(workers.offsets))
    gone, jobs = fleet.gpus == 0, workers.offsets.size - 1
    kept = effects_of(job_of, workers.server, workers.base > 0, gone, jobs).kept
    counts = np.bincount(job_of[kept], minlength=jobs)
    return WorkerMap(
        np.concatenate(([0], np.cumsum(counts))),
        workers.server[kept],
        workers.base[kept],
        workers.flexible[kept],
    )


def kind_of(before: int, after: int) -> ChangeKind:
    """The kind of a change from ``before`` to ``after`` GPUs."""
    if after == 0:
        return ChangeKind.SUSPEND
    if before == 0:
        return ChangeKind.START
    if after == before:
        return ChangeKind.MIGRATE
    return ChangeKind.GROW if after > before else ChangeKind.SHRINK


def loaned_fleet(servers: Servers, usable: BoolArray, on_loan: BoolArray, role: IntArray) -> Fleet:
    """The fleet; servers that are not ``usable`` have no GPUs."""
    return Fleet(np.where(usable, servers.gpus, 0), on_loan, role)
