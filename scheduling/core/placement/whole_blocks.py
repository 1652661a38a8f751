"""Which blocks a job takes that is larger than any of them: whole servers as a rule."""

from __future__ import annotations

import numpy as np

from scheduling.core.kernels import kernel
from scheduling.core.placement.buddy_blocks import NOWHERE, Blocks
from scheduling.core.placement.displacing import prices
from scheduling.core.placement.occupancy import FREE, SPREAD, TIGHT, Occupancy
from scheduling.core.question.arrays import BoolArray
from scheduling.core.question.snapshot import IntArray


@kernel
def _block_prices(
    blocks: Blocks, occupancy: Occupancy, job: int, size: int, run: int
) -> tuple[BoolArray, IntArray]:
    """(allowed, `prices`) of taking each block whole: jobs and GPUs displaced, and overlap.

    One look is enough where nobody or one large job is on a block.
    """
    bases = blocks.base
    sizes = blocks.size
    owner = occupancy.owner
    held_base = occupancy.base
    held_size = occupancy.size
    settled = occupancy.settled
    slack = occupancy.slack
    move_seconds = occupancy.move_seconds
    taken = occupancy.taken
    mine = occupancy.mine
    total = bases.size
    old_base = occupancy.old_base[job]
    old_block = blocks.block_of[old_base] if old_base >= 0 else NOWHERE
    allowed = np.zeros(total, dtype=np.bool_)
    priced = np.zeros((total, 3), dtype=np.int64)
    others = np.empty(total, dtype=np.int64)
    count = 0
    for block in range(total):
        if sizes[block] > size:
            continue
        holder = owner[bases[block]]
        if holder >= 0 and held_base[holder] == SPREAD:
            if settled[holder] != run and held_size[holder] < size:
                tight = slack[holder] < move_seconds[holder]
                allowed[block] = True
                priced[block, 0] = TIGHT if tight else 1
                priced[block, 1] = sizes[block]
        elif taken[block] == 0 and block != old_block:
            allowed[block] = True
            priced[block, 2] = sizes[block] if mine[bases[block]] != FREE else 0
        else:
            others[count] = block
            count += 1
    others = others[:count]
    allowed[others], priced[others] = prices(occupancy, bases[others], sizes[others], run, size)
    return allowed, priced


@kernel
def _block_keys(blocks: Blocks, allowed: BoolArray, priced: IntArray) -> IntArray:
    """One number per block to choose by: displacement, own overlap, and how roomy its rack is."""
    rack = blocks.rack
    sizes = blocks.size
    total = sizes.size
    in_rack = np.zeros(total + 1, dtype=np.int64)  # racks are numbered by their usable servers
    for block in range(total):
        if allowed[block] and priced[block, 0] == 0:
            in_rack[rack[block]] += 1
    key = np.zeros(total, dtype=np.int64)
    wide = 1 << 16
    for block in range(total):
        dearness = (priced[block, 0] * wide + priced[block, 1]) * wide + sizes[block] - priced[block, 2]
        key[block] = dearness * wide + (wide - 1 - min(in_rack[rack[block]], wide - 1))
    return key


@kernel
def cheapest(sizes: IntArray, allowed: BoolArray, key: IntArray, room: int, most: int) -> IntArray:
    """Of the allowed blocks of ``room`` GPUs the ``most`` with the lowest keys, among equal ones the first;
    ascending."""
    keys = np.empty(sizes.size, dtype=np.int64)
    candidates = np.empty(sizes.size, dtype=np.int64)
    count = 0
    for block in range(sizes.size):
        if allowed[block] and sizes[block] == room:
            keys[count] = key[block]
            candidates[count] = block
            count += 1
    if count <= most:
        return candidates[:count]
    highest = np.partition(keys[:count], most - 1)[most - 1]
    below = 0
    for position in range(count):
        if keys[position] < highest:
            below += 1
    found = np.empty(most, dtype=np.int64)
    written = 0
    at_highest = most - below
    for position in range(count):
        if keys[position] == highest:
            at_highest -= 1
        if keys[position] < highest or (keys[position] == highest and at_highest >= 0):
            found[written] = candidates[position]
            written += 1
    return found


@kernel
def whole_block_choice(blocks: Blocks, occupancy: Occupancy, job: int, size: int, run: int) -> IntArray:
    """Blocks for a job larger than any of them, ascending: an aligned run of servers if that is no dearer.

    Otherwise whole blocks, least displacement first, from the rack with most of them. Returns an
    empty list where the GPUs are not there.
    """
    allowed, priced = _block_prices(blocks, occupancy, job, size, run)
    key = _block_keys(blocks, allowed, priced)
    sizes = blocks.size
    chosen = np.zeros(sizes.size, dtype=np.int64)
    count = 0
    jobs = 0
    gpus = 0
    need = size
    room = 1 << 40
    while need > 0:
        largest = 0  # largest block size still below the last one tried
        for block in range(sizes.size):
            if allowed[block] and largest < sizes[block] < room:
                largest = sizes[block]
        if largest == 0:
            return chosen[:0]
        room = largest
        for best in cheapest(sizes, allowed, key, room, need // room):
            chosen[count] = best
            count += 1
            need -= room
            jobs += priced[best, 0]
            gpus += priced[best, 1]
    start, run_jobs, run_gpus = _aligned_run(blocks, allowed, priced, size)
    if start >= 0 and (run_jobs, run_gpus) <= (jobs, gpus):
        return np.arange(start, start + size // sizes[start])
    return np.sort(chosen[:count])


@kernel
def _aligned_run(blocks: Blocks, allowed: BoolArray, priced: IntArray, size: int) -> tuple[int, int, int]:
    """The cheapest aligned run of equal whole servers: (first block or -1, jobs, GPUs displaced)."""
    sizes = blocks.size
    servers = blocks.server
    best = -1
    best_key = (0, 0, 0)
    for start in range(sizes.size):
        length = size // sizes[start]
        if not allowed[start] or length == 0 or servers[start] % length:
            continue
        if size % sizes[start]:
            continue  # servers of so many GPUs do not add up to the size
        if start + length > sizes.size:
            continue
        jobs = 0
        gpus = 0
        overlap = 0
        whole = True
        for block in range(start, start + length):
            if (
                not allowed[block]
                or sizes[block] != sizes[start]
                or servers[block] != servers[start] + block - start
            ):
                whole = False
                break
            jobs += priced[block, 0]
            gpus += priced[block, 1]
            overlap += priced[block, 2]
        key = (jobs, gpus, -overlap)
        if whole and (best < 0 or key < best_key):
            best = start
            best_key = key
    return best, best_key[0], best_key[1]
