"""Where jobs sit: sticky repack onto aligned blocks (ElasticFlow section 4.3; spec 2.9).

Larger jobs are placed first, so that room for each is certain; a job whose size did not change
keeps its GPUs unless a larger job needs them. Among the possible places the one is chosen that
displaces the fewest jobs that cannot bear a move, then the fewest jobs, then the fewest GPUs, then overlaps most with
the job's own old GPUs, then leaves the largest free areas whole, then has the lowest address.
"""

from __future__ import annotations

import heapq
from typing import Any, NamedTuple

import numpy as np

from scheduling.core.blocks import NOWHERE
from scheduling.core.compiling import NO, YES, kernel
from scheduling.core.snapshot import FloatArray, IntArray

FREE = -1
BLOCKED = -2  # nobody may sit here for now
UNPLACED = -1
USED = np.int64(1 << 62)
TIGHT: Any = np.int64(64)  # weighs as so many jobs: one that a move would make late
SPREAD = -2  # takes whole blocks; they are found through the owners


class Occupancy(NamedTuple):
    """Who sits where, changed in place.

    Per address: ``owner`` (job or FREE), ``former`` (a job that waits to be placed and held the
    address), ``mine`` (marks the old addresses of the job being placed). Per block: ``taken``,
    addresses with an owner or former. Per job: ``base`` and ``size`` of its place now, ``old_base``
    and ``old_size`` of the one it lost, ``settled`` (pass in which it was placed), ``slack`` (seconds before
    its deadline, infinity without a promise) and ``move_seconds`` (what a move costs it at most).
    """

    owner: IntArray
    former: IntArray
    mine: IntArray
    taken: IntArray
    base: IntArray
    size: IntArray
    old_base: IntArray
    old_size: IntArray
    settled: IntArray
    slack: FloatArray
    move_seconds: FloatArray


@kernel
def empty_occupancy(blocks, blocked, jobs):  # type: ignore[no-untyped-def]
    """Nothing placed, ``blocked`` addresses marked; room for ``jobs`` jobs."""
    addresses = blocks.block_of.size
    owner = np.full(addresses, FREE)
    taken = np.zeros(blocks.base.size, dtype=np.int64)
    for address in blocked:
        owner[address] = BLOCKED
        taken[blocks.block_of[address]] += 1
    return Occupancy(
        owner,
        np.full(addresses, FREE),
        np.full(addresses, FREE),
        taken,
        np.full(jobs, UNPLACED),
        np.zeros(jobs, dtype=np.int64),
        np.full(jobs, UNPLACED),
        np.zeros(jobs, dtype=np.int64),
        np.zeros(jobs, dtype=np.int64),
        np.full(jobs, np.inf),
        np.zeros(jobs),
    )


@kernel
def seat(blocks, occupancy, jobs, addresses, offsets, gpus):  # type: ignore[no-untyped-def]
    """Enter present placements of ``jobs``; ``addresses`` and ``offsets`` are those of all jobs.

    Returns True per row for every job that has GPUs (``gpus``) which are no regular, usable place. Regular is an
    aligned part of one block, or a set of whole blocks. A job that is not regular counts as holding nothing: it must be
    placed anew.
    """
    homeless = np.zeros(gpus.size, dtype=np.bool_)
    for job in jobs:
        homeless[job] = gpus[job] > 0
        if job >= offsets.size - 1 or offsets[job] == offsets[job + 1]:
            continue
        held = addresses[offsets[job] : offsets[job + 1]]
        low = held[0]
        high = held[0]
        for address in held:
            low = min(low, address)
            high = max(high, address)
        inside = high - low + 1 == held.size and low >= 0 and high < blocks.block_of.size
        block = blocks.block_of[low] if inside else NOWHERE
        if block != NOWHERE and held.size <= blocks.size[block]:
            start = low - blocks.base[block]
            regular = start % held.size == 0 and start + held.size <= blocks.size[block]
            base = low
        else:
            regular = _whole_blocks(blocks, held)
            base = SPREAD
        if regular:
            for address in held:
                if occupancy.owner[address] != FREE:
                    regular = False
        homeless[job] = not regular
        if not regular:
            continue
        for address in held:
            occupancy.owner[address] = job
            occupancy.taken[blocks.block_of[address]] += 1
        occupancy.base[job] = base
        occupancy.size[job] = held.size
    return homeless


@kernel
def _whole_blocks(blocks, held):  # type: ignore[no-untyped-def]
    counts = np.zeros(blocks.size.size, dtype=np.int64)
    for address in held:
        if address < 0 or address >= blocks.block_of.size:
            return False
        block = blocks.block_of[address]
        if block == NOWHERE:
            return False
        counts[block] += 1
    for block in range(counts.size):
        if counts[block] != 0 and counts[block] != blocks.size[block]:
            return False
    return True


@kernel
def addresses_of(blocks, occupancy, job):  # type: ignore[no-untyped-def]
    """The GPUs a job sits on, ascending."""
    found = np.empty(occupancy.size[job], dtype=np.int64)
    if occupancy.base[job] == UNPLACED:
        return found[:0]
    if occupancy.base[job] >= 0:
        for offset in range(occupancy.size[job]):
            found[offset] = occupancy.base[job] + offset
        return found
    written = 0
    for block in range(blocks.base.size):
        if occupancy.owner[blocks.base[block]] == job:
            for address in range(blocks.base[block], blocks.base[block] + blocks.size[block]):
                found[written] = address
                written += 1
    return found


@kernel
def leave(blocks, occupancy, job):  # type: ignore[no-untyped-def]
    """The job gives up its place for good."""
    for address in addresses_of(blocks, occupancy, job):
        occupancy.owner[address] = FREE
        occupancy.taken[blocks.block_of[address]] -= 1
    occupancy.base[job] = UNPLACED
    occupancy.size[job] = 0


@kernel
def lift(blocks, occupancy, job):  # type: ignore[no-untyped-def]
    """The job waits to be placed; its GPUs are remembered as its former ones."""
    for address in addresses_of(blocks, occupancy, job):
        occupancy.owner[address] = FREE
        occupancy.former[address] = job
    occupancy.old_base[job] = occupancy.base[job]
    occupancy.old_size[job] = occupancy.size[job]
    occupancy.base[job] = UNPLACED
    occupancy.size[job] = 0


@kernel
def _turn_former_into_mine(blocks, occupancy, job, mark):  # type: ignore[no-untyped-def]
    """Free what is left of the job's former GPUs and mark them as its own, or remove the mark."""
    if occupancy.old_base[job] == UNPLACED:
        return
    low = 0
    high = occupancy.owner.size
    if occupancy.old_base[job] >= 0:
        low = occupancy.old_base[job]
        high = low + occupancy.old_size[job]
    for address in range(low, high):
        if mark and occupancy.former[address] == job:
            occupancy.former[address] = FREE
            occupancy.mine[address] = job
            if occupancy.owner[address] == FREE:
                occupancy.taken[blocks.block_of[address]] -= 1
        elif not mark and occupancy.mine[address] == job:
            occupancy.mine[address] = FREE


@kernel
def _is_fixed(occupancy, address, size, run):  # type: ignore[no-untyped-def]
    """Whether the address belongs to a job that may not be displaced by one of ``size`` GPUs."""
    job = occupancy.owner[address]
    return job == BLOCKED or job != FREE and (occupancy.settled[job] == run or occupancy.size[job] >= size)


@kernel
def _free_place(blocks, occupancy, job, size):  # type: ignore[no-untyped-def]
    """The best aligned place that displaces nobody, or UNPLACED."""
    old_base = occupancy.old_base[job]
    old_block = blocks.block_of[old_base] if old_base >= 0 else NOWHERE
    best = UNPLACED
    best_overlap = 0
    best_area = 0
    for block in range(blocks.base.size):
        room = blocks.size[block]
        if room < size or room - occupancy.taken[block] < size:
            continue
        first = blocks.base[block]
        for base in range(first, first + room, size):
            overlap = 0
            free = True
            for address in range(base, base + size):
                if occupancy.owner[address] != FREE or occupancy.former[address] != FREE:
                    free = False
                    break
                if occupancy.mine[address] != FREE:
                    overlap += 1
            if not free:
                continue
            area = room if occupancy.taken[block] == 0 else _free_area(occupancy, first, room, base, size)
            if best == UNPLACED or overlap > best_overlap or (overlap == best_overlap and area < best_area):
                best = base
                best_overlap = overlap
                best_area = area
            if occupancy.taken[block] == 0 and block != old_block and old_base != SPREAD:
                break  # every place in a wholly free block is as good as its first
    return best


@kernel
def _free_area(occupancy, first, room, base, size):  # type: ignore[no-untyped-def]
    """Size of the largest aligned area around a free place that is free as a whole."""
    area = size
    while area < room:
        start = first + (base - first) // (2 * area) * (2 * area)
        for address in range(start, start + 2 * area):
            if occupancy.owner[address] != FREE or occupancy.former[address] != FREE:
                return area
        area *= 2
    return area


@kernel
def _price(occupancy, base, size, run, asked):  # type: ignore[no-untyped-def]
    """(allowed, jobs displaced, GPUs displaced, overlap) of taking ``size`` addresses at ``base``.

    A job that a move would make late counts as TIGHT jobs.
    """
    jobs = 0
    gpus = 0
    overlap = 0
    last = FREE
    for address in range(base, base + size):
        if _is_fixed(occupancy, address, asked, run):
            return False, 0, 0, 0
        job = occupancy.owner[address]
        if job == FREE:
            job = occupancy.former[address]
        if job != FREE:
            gpus += 1
            if job != last:
                jobs += TIGHT if occupancy.slack[job] < occupancy.move_seconds[job] else 1
        elif occupancy.mine[address] != FREE:
            overlap += 1
        last = job
    return True, jobs, gpus, overlap


@kernel
def _displacing_place(blocks, occupancy, size, run):  # type: ignore[no-untyped-def]
    """The aligned place that displaces the least, or UNPLACED."""
    best = UNPLACED
    best_key = (0, 0, 0)
    for block in range(blocks.base.size):
        if blocks.size[block] < size:
            continue
        for base in range(blocks.base[block], blocks.base[block] + blocks.size[block], size):
            allowed, jobs, gpus, overlap = _price(occupancy, base, size, run, size)
            key = (jobs, gpus, -overlap)
            if allowed and (best == UNPLACED or key < best_key):
                best = base
                best_key = key
    return best


@kernel
def _block_prices(blocks, occupancy, size, run):  # type: ignore[no-untyped-def]
    """(allowed, price) of taking each block whole: price is jobs and GPUs displaced, and overlap."""
    total = blocks.base.size
    allowed = np.zeros(total, dtype=np.bool_)
    price = np.zeros((total, 3), dtype=np.int64)
    for block in range(total):
        if blocks.size[block] <= size:
            allowed[block], price[block, 0], price[block, 1], price[block, 2] = _price(
                occupancy, blocks.base[block], blocks.size[block], run, size
            )
    return allowed, price


@kernel
def _block_keys(blocks, allowed, price):  # type: ignore[no-untyped-def]
    """One number per block to choose by: displacement, own overlap, and how roomy its rack is."""
    total = blocks.base.size
    in_rack = np.zeros(total + 1, dtype=np.int64)  # racks are numbered by their usable servers
    for block in range(total):
        if allowed[block] and price[block, 0] == 0:
            in_rack[blocks.rack[block]] += 1
    key = np.zeros(total, dtype=np.int64)
    wide = 1 << 16
    for block in range(total):
        dearness = (price[block, 0] * wide + price[block, 1]) * wide + blocks.size[block] - price[block, 2]
        key[block] = dearness * wide + (wide - 1 - min(in_rack[blocks.rack[block]], wide - 1))
    return key


@kernel
def _cheapest(blocks, allowed, key, room):  # type: ignore[no-untyped-def]
    """The unused allowed block of ``room`` GPUs with the lowest key, or -1."""
    best = -1
    for block in range(blocks.base.size):
        if allowed[block] and blocks.size[block] == room and key[block] < USED:
            if best < 0 or key[block] < key[best]:
                best = block
    return best


@kernel
def _whole_block_choice(blocks, occupancy, size, run):  # type: ignore[no-untyped-def]
    """Blocks for a job larger than any of them: an aligned run of servers if that is no dearer.

    Otherwise whole blocks, least displacement first, from the rack with most of them. Returns an
    empty list where the GPUs are not there.
    """
    allowed, price = _block_prices(blocks, occupancy, size, run)
    key = _block_keys(blocks, allowed, price)
    chosen = np.zeros(blocks.base.size, dtype=np.int64)
    count = 0
    jobs = 0
    gpus = 0
    need = size
    room = 1 << 40
    while need > 0:
        largest = 0  # largest block size still below the last one tried
        for block in range(blocks.base.size):
            if allowed[block] and largest < blocks.size[block] < room:
                largest = blocks.size[block]
        if largest == 0:
            return chosen[:0]
        room = largest
        best = _cheapest(blocks, allowed, key, room)
        while need >= room and best >= 0:
            key[best] = USED
            chosen[count] = best
            count += 1
            need -= room
            jobs += price[best, 0]
            gpus += price[best, 1]
            best = _cheapest(blocks, allowed, key, room)
    start, run_jobs, run_gpus = _aligned_run(blocks, allowed, price, size)
    if start >= 0 and (run_jobs, run_gpus) <= (jobs, gpus):
        return np.arange(start, start + size // blocks.size[start])
    return chosen[:count]


@kernel
def _aligned_run(blocks, allowed, price, size):  # type: ignore[no-untyped-def]
    """The cheapest aligned run of equal whole servers: (first block or -1, jobs, GPUs displaced)."""
    best = -1
    best_key = (0, 0, 0)
    for start in range(blocks.base.size):
        length = size // blocks.size[start]
        if not allowed[start] or length == 0 or blocks.server[start] % length:
            continue
        if start + length > blocks.base.size:
            continue
        jobs = 0
        gpus = 0
        overlap = 0
        whole = True
        for block in range(start, start + length):
            if (
                not allowed[block]
                or blocks.size[block] != blocks.size[start]
                or blocks.server[block] != blocks.server[start] + block - start
            ):
                whole = False
                break
            jobs += price[block, 0]
            gpus += price[block, 1]
            overlap += price[block, 2]
        key = (jobs, gpus, -overlap)
        if whole and (best < 0 or key < best_key):
            best = start
            best_key = key
    return best, best_key[0], best_key[1]


@kernel
def _take(blocks, occupancy, job, base, size, queue, rank):  # type: ignore[no-untyped-def]
    """Give addresses to the job; whoever sits there is lifted and queued."""
    for address in range(base, base + size):
        other = occupancy.owner[address]
        if other != FREE:
            other_size = occupancy.size[other]
            lift(blocks, occupancy, other)
            heapq.heappush(queue, (-other_size, 0, rank[other], other))
        if occupancy.former[address] != FREE:
            occupancy.former[address] = FREE
        else:
            occupancy.taken[blocks.block_of[address]] += 1
        occupancy.owner[address] = job


@kernel
def place_queue(blocks, occupancy, queue, rank, run):  # type: ignore[no-untyped-def]
    """Place all queued jobs ``(-size, waited 1 | placed 0, rank, job)``, those they displace too.

    ``run`` numbers the pass: a job settled in it stays. Returns (jobs placed, in order; jobs for
    which there was no room). Displaced jobs appear in the first list too.
    """
    placed = [0 for _ in range(0)]
    failed = [0 for _ in range(0)]
    while len(queue) > 0:
        negative_size, _, _, job = heapq.heappop(queue)
        size = -negative_size
        _turn_former_into_mine(blocks, occupancy, job, YES)
        base = _free_place(blocks, occupancy, job, size)
        if base == UNPLACED:
            base = _displacing_place(blocks, occupancy, size, run)
        if base != UNPLACED:
            _take(blocks, occupancy, job, base, size, queue, rank)
            occupancy.base[job] = base
        else:
            chosen = _whole_block_choice(blocks, occupancy, size, run)
            for block in chosen:
                _take(blocks, occupancy, job, blocks.base[block], blocks.size[block], queue, rank)
            if chosen.size:
                occupancy.base[job] = SPREAD
        _turn_former_into_mine(blocks, occupancy, job, NO)
        occupancy.old_base[job] = UNPLACED
        if occupancy.base[job] == UNPLACED:
            failed.append(job)
            continue
        occupancy.size[job] = size
        occupancy.settled[job] = run
        placed.append(job)
    return placed, failed
