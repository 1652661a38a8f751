"""Which blocks a job takes that is larger than any of them: whole servers as a rule."""

from __future__ import annotations

import heapq

import numpy as np

from scheduling.core.compiling import kernel
from scheduling.core.displacing import price
from scheduling.core.occupancy import FREE, SPREAD, TIGHT


@kernel
def _price_whole(blocks, occupancy, block, job, size, run):  # type: ignore[no-untyped-def]
    """`price` of all GPUs of a block for ``job``; one look where nobody or one large job is on it."""
    base = blocks.base[block]
    holder = occupancy.owner[base]
    if holder >= 0 and occupancy.base[holder] == SPREAD:
        if occupancy.settled[holder] == run or occupancy.size[holder] >= size:
            return False, 0, 0, 0
        tight = occupancy.slack[holder] < occupancy.move_seconds[holder]
        return True, TIGHT if tight else 1, blocks.size[block], 0
    old_base = occupancy.old_base[job]
    if occupancy.taken[block] == 0 and (old_base < 0 or blocks.block_of[old_base] != block):
        return True, 0, 0, blocks.size[block] if occupancy.mine[base] != FREE else 0
    return price(occupancy, base, blocks.size[block], run, size)


@kernel
def _block_prices(blocks, occupancy, job, size, run):  # type: ignore[no-untyped-def]
    """(allowed, price) of taking each block whole: price is jobs and GPUs displaced, and overlap."""
    total = blocks.base.size
    allowed = np.zeros(total, dtype=np.bool_)
    prices = np.zeros((total, 3), dtype=np.int64)
    for block in range(total):
        if blocks.size[block] <= size:
            allowed[block], prices[block, 0], prices[block, 1], prices[block, 2] = _price_whole(
                blocks, occupancy, block, job, size, run
            )
    return allowed, prices


@kernel
def _block_keys(blocks, allowed, prices):  # type: ignore[no-untyped-def]
    """One number per block to choose by: displacement, own overlap, and how roomy its rack is."""
    total = blocks.base.size
    in_rack = np.zeros(total + 1, dtype=np.int64)  # racks are numbered by their usable servers
    for block in range(total):
        if allowed[block] and prices[block, 0] == 0:
            in_rack[blocks.rack[block]] += 1
    key = np.zeros(total, dtype=np.int64)
    wide = 1 << 16
    for block in range(total):
        dearness = (prices[block, 0] * wide + prices[block, 1]) * wide + blocks.size[block] - prices[block, 2]
        key[block] = dearness * wide + (wide - 1 - min(in_rack[blocks.rack[block]], wide - 1))
    return key


@kernel
def _cheapest_first(blocks, allowed, key, room):  # type: ignore[no-untyped-def]
    """A heap of (key, block) of the allowed blocks of ``room`` GPUs."""
    heap = [
        (key[block], block)
        for block in range(blocks.base.size)
        if allowed[block] and blocks.size[block] == room
    ]
    heapq.heapify(heap)
    return heap


@kernel
def whole_block_choice(blocks, occupancy, job, size, run):  # type: ignore[no-untyped-def]
    """Blocks for a job larger than any of them, ascending: an aligned run of servers if that is no dearer.

    Otherwise whole blocks, least displacement first, from the rack with most of them. Returns an
    empty list where the GPUs are not there.
    """
    allowed, prices = _block_prices(blocks, occupancy, job, size, run)
    key = _block_keys(blocks, allowed, prices)
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
        heap = _cheapest_first(blocks, allowed, key, room)
        while need >= room and len(heap) > 0:
            _, best = heapq.heappop(heap)
            chosen[count] = best
            count += 1
            need -= room
            jobs += prices[best, 0]
            gpus += prices[best, 1]
    start, run_jobs, run_gpus = _aligned_run(blocks, allowed, prices, size)
    if start >= 0 and (run_jobs, run_gpus) <= (jobs, gpus):
        return np.arange(start, start + size // blocks.size[start])
    return np.sort(chosen[:count])


@kernel
def _aligned_run(blocks, allowed, prices, size):  # type: ignore[no-untyped-def]
    """The cheapest aligned run of equal whole servers: (first block or -1, jobs, GPUs displaced)."""
    best = -1
    best_key = (0, 0, 0)
    for start in range(blocks.base.size):
        length = size // blocks.size[start]
        if not allowed[start] or length == 0 or blocks.server[start] % length:
            continue
        if size % blocks.size[start]:
            continue  # servers of so many GPUs do not add up to the size
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
            jobs += prices[block, 0]
            gpus += prices[block, 1]
            overlap += prices[block, 2]
        key = (jobs, gpus, -overlap)
        if whole and (best < 0 or key < best_key):
            best = start
            best_key = key
    return best, best_key[0], best_key[1]
