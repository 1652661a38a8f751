"""Workers and GPU addresses: from who holds which GPUs to how many workers are on which server, and back.

Lyra's algorithms count workers on servers (`fleet.py`); the platform gives jobs GPUs with addresses. Which of
a server's free GPUs a worker takes does not matter to them, so a job keeps those that it holds there and
takes the lowest free ones beside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from scheduling.core.kernels import kernel
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
    """Servers by the addresses of their GPUs: server k has ``first[k]`` and ``gpus[k] - 1`` more; addresses
    cover all servers.

    ``gpus`` counts every GPU, also of servers that may not be used.
    """

    first: IntArray
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
    """The worker map of jobs that hold ``addresses[offsets[i]:offsets[i + 1]]``, marked ``flexible`` or
    not."""
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
    """(owner of every address among those that keep it, GPUs that each entry of the map lacks beside)."""
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
    """GPUs for the workers of a map: (addresses ascending by job, offsets, flexible marks, whether each job's
    GPUs changed).

    ``held`` and ``held_offsets`` are the present ones; ``first`` and ``gpus`` those of `Servers`.
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
    """What Lyra's policies see beside the columns of a problem.

    ``flexible`` marks, in the order of the columns' addresses, GPUs that flexible workers hold. ``blocked``:
    addresses that nobody may be placed on for now; the fleet does not count them. ``aside``: rows that are no
    part of the question (`set_aside`); None for nobody. ``same_kind``: borrowed servers have the cluster's
    own kind of GPU.
    """

    servers: Servers
    fleet: Fleet
    flexible: BoolArray
    demands: Demands
    blocked: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    aside: BoolArray | None = None
    same_kind: bool = False

    def workers(self, columns: JobColumns) -> WorkerMap:
        """Where the jobs' workers are now, as far as they can stay there."""
        workers: WorkerMap = count_workers(
            columns.addresses,
            columns.offsets,
            self.flexible,
            self.servers.server_of(),
            self.demands.gpus_per_worker,
        )
        if self.aside is not None:
            workers = workers_of(workers, ~self.aside)
        return usable_workers(workers, self.fleet)


@dataclass(frozen=True)
class SharedPlacements:
    """Who holds which GPUs, which of them by flexible workers, the role of every server, and what changes for
    whom."""

    placements: Placements
    flexible: BoolArray
    role: IntArray
    changes: tuple[Change, ...]
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
    """Addresses for a worker map, and the changes that lead there: those who give up GPUs first.

    ``ids``: names by row. ``pause_seconds(row, gpus)``: the pause of a change onto so many GPUs.
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
    """GPUs that some jobs hold; the others hold none."""
    addresses, offsets = regather(
        columns.addresses, columns.offsets, np.where(rows, np.arange(rows.size), -1)
    )
    return Placements(addresses, offsets)


def workers_of(workers: WorkerMap, rows: BoolArray) -> WorkerMap:
    """Workers of some jobs; the others have none."""
    inside, offsets = _entries_of(workers.offsets, rows)
    return WorkerMap(offsets, workers.server[inside], workers.base[inside], workers.flexible[inside])


def speeds_of(speeds: Speeds, rows: BoolArray) -> Speeds:
    """Rates of some jobs; the others can run nowhere."""
    inside, offsets = _entries_of(speeds.offsets, rows)
    return Speeds(offsets, speeds.workers[inside], speeds.rate[inside])


def _entries_of(offsets: IntArray, rows: BoolArray) -> tuple[BoolArray, IntArray]:
    counts = np.diff(offsets)
    return np.repeat(rows, counts), np.concatenate(([0], np.cumsum(np.where(rows, counts, 0))))


def set_aside(sharing: Sharing, columns: JobColumns, rows: BoolArray) -> Sharing:
    """The same without some jobs, which keep their GPUs whatever is decided: `put_back` gives them theirs
    again."""
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
    """Placements with the GPUs that jobs set aside hold."""
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
    """Two maps of different jobs as one."""
    counts = np.diff(one.offsets) + np.diff(other.offsets)
    jobs = np.arange(counts.size)
    owner = np.concatenate((np.repeat(jobs, np.diff(one.offsets)), np.repeat(jobs, np.diff(other.offsets))))
    order = np.argsort(owner, kind="stable")
    return WorkerMap(
        np.concatenate(([0], np.cumsum(counts))),
        *(np.concatenate(pair)[order] for pair in zip(one[1:], other[1:], strict=True)),
    )


def usable_workers(workers: WorkerMap, fleet: Fleet) -> WorkerMap:
    """What is left of a map when servers may not be used any more: they went back, or are lost."""
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
    """What a change from so many GPUs to so many others is."""
    if after == 0:
        return ChangeKind.SUSPEND
    if before == 0:
        return ChangeKind.START
    if after == before:
        return ChangeKind.MIGRATE
    return ChangeKind.GROW if after > before else ChangeKind.SHRINK


def loaned_fleet(servers: Servers, usable: BoolArray, on_loan: BoolArray, role: IntArray) -> Fleet:
    """The fleet of servers of which some may not be used now."""
    return Fleet(np.where(usable, servers.gpus, 0), on_loan, role)
