"""The choice of whole blocks, usually whole servers, for a job that does not fit into one block."""

from __future__ import annotations

import numpy as np

from kernels.compiling import kernel
from scheduling.core.placement.buddy_blocks import NOWHERE, Blocks
from scheduling.core.placement.displacing import prices
from scheduling.core.placement.occupancy import FREE, SPREAD, TIGHT, Occupancy
from scheduling.core.question.arrays import BoolArray
from scheduling.core.question.snapshot import IntArray


@kernel
def _block_prices(
    blocks: Blocks, occupancy: Occupancy, job: int, size: int, run: int
) -> tuple[BoolArray, IntArray]:
    """(allowed, prices) of each whole block, as `prices` returns them.

    A block that is free or held by one SPREAD job is priced at once, without a scan of its addresses.
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
    """One number per block; the lowest is chosen.

    It orders by jobs displaced, GPUs displaced, GPUs of the block that are not the job's own old ones, and
    then prefers the rack with the most blocks that displace no job.
    """
    rack = blocks.rack
    sizes = blocks.size
    total = sizes.size
    in_rack = np.zeros(total + 1, dtype=np.int64)  # there are at most as many racks as blocks
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
    """The ``most`` allowed blocks of ``room`` GPUs with the lowest keys, ascending; ties go to the first."""
    keys = np.empty(sizes.size, dtype=np.int64)
    candidates = np.empty(sizes.size, dtype=np.int64)
    count = 0
    for block in range(sizes.size):
        if allowed[block] and sizes[block] == room:
            keys[count] = key[block]
            candidates[count] = block
            count += 1
    if count <= most or most <= 0:  # no block of that size is small enough for what is needed
        return candidates[: min(count, most)]
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
    """The whole blocks, ascending, for a job of ``size`` GPUs.

    The job takes an aligned run of servers if that displaces no more than separate blocks do. Otherwise it
    takes the blocks with the lowest keys (`_block_keys`), largest blocks first. The result is empty if there
    are not enough GPUs.
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
        largest = 0  # largest block size below the size tried last
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
    """The cheapest aligned run of equal whole servers: (first block or -1, jobs, GPUs displaced).

    Of equally cheap runs that keep as many old GPUs, the first with the fewest changes of rack is chosen.
    """
    sizes = blocks.size
    servers = blocks.server
    racks = blocks.rack
    best = -1
    best_key = (0, 0, 0, 0)
    for start in range(sizes.size):
        length = size // sizes[start]
        if not allowed[start] or length == 0 or servers[start] % length:
            continue
        if size % sizes[start]:
            continue  # whole servers of this size do not add up to the job's size
        if start + length > sizes.size:
            continue
        jobs = 0
        gpus = 0
        overlap = 0
        changes_of_rack = 0
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
            if block > start and racks[block] != racks[block - 1]:
                changes_of_rack += 1
        key = (jobs, gpus, -overlap, changes_of_rack)
        if whole and (best < 0 or key < best_key):
            best = start
            best_key = key
    return best, best_key[0], best_key[1]
