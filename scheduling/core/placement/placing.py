"""Placing: sticky repack onto buddy blocks (ElasticFlow section 4.3).

Larger jobs are placed first, so every job finds room. A job whose size did not change keeps its GPUs unless a
larger job needs them. Of the possible places, a job takes the one that displaces the fewest jobs that a move
would make late. Ties go to the fewest jobs displaced, then the fewest GPUs displaced, the largest overlap
with the job's own old GPUs, the smallest free area around the place, and the lowest address.
"""

from __future__ import annotations

import heapq

from kernels.compiling import NO, YES, ZERO, kernel, leaf
from scheduling.core.placement.buddy_blocks import Blocks
from scheduling.core.placement.displacing import displacing_place
from scheduling.core.placement.occupancy import END, FREE, SPREAD, UNPLACED, Occupancy, lift, list_blocks
from scheduling.core.placement.whole_blocks import whole_block_choice
from scheduling.core.question.snapshot import IntArray


@leaf
def _mark_former(blocks: Blocks, occupancy: Occupancy, job: int, low: int, high: int, mark: bool) -> None:
    """Turn the job's ``former`` addresses from ``low`` to ``high`` (excluded) into ``mine``.

    With ``mark`` False, remove the marks of ``mine`` instead.
    """
    former = occupancy.former
    mine = occupancy.mine
    owner = occupancy.owner
    for address in range(low, high):
        if mark and former[address] == job:
            former[address] = FREE
            mine[address] = job
            if owner[address] == FREE:
                occupancy.taken[blocks.block_of[address]] -= 1
        elif not mark and mine[address] == job:
            mine[address] = FREE


@leaf
def turn_former_into_mine(blocks: Blocks, occupancy: Occupancy, job: int, mark: bool) -> None:
    """Free the job's former addresses that no job took, and mark them as ``mine``.

    With ``mark`` False, remove the marks of ``mine`` instead.
    """
    if occupancy.old_base[job] == UNPLACED:
        return
    if occupancy.old_base[job] >= 0:
        low = occupancy.old_base[job]
        _mark_former(blocks, occupancy, job, low, low + occupancy.old_size[job], mark)
        return
    block = occupancy.old_first[job]
    while block != END:
        low = blocks.base[block]
        _mark_former(blocks, occupancy, job, low, low + blocks.size[block], mark)
        block = occupancy.old_next[block]


@leaf
def free_place(blocks: Blocks, occupancy: Occupancy, job: int, size: int) -> int:
    """The best aligned place that displaces no job, or UNPLACED.

    Only a place on the job's former blocks can overlap with its old GPUs, so these blocks are tried first.
    """
    best = _free_former_place(blocks, occupancy, job, size)
    if best != UNPLACED:
        return best
    best_area = 0
    for block in range(blocks.base.size):
        room = blocks.size[block]
        if room < size or room - occupancy.taken[block] < size:
            continue
        empty = occupancy.taken[block] == 0
        if empty and best != UNPLACED and best_area <= room:
            continue
        best, _, best_area = _better_place(blocks, occupancy, block, size, empty, best, ZERO, best_area)
        if best != UNPLACED and best_area == size:
            return best  # no area is smaller, and all later blocks have higher addresses
    return best


@leaf
def _free_former_place(blocks: Blocks, occupancy: Occupancy, job: int, size: int) -> int:
    """The best free place on the job's former blocks that overlaps with its old GPUs, or UNPLACED."""
    base = occupancy.old_base[job]
    best = UNPLACED
    overlap = 0
    area = 0
    block = END
    if base >= 0:
        block = blocks.block_of[base]
    elif base == SPREAD:
        block = occupancy.old_first[job]
    while block != END:
        room = blocks.size[block]
        if room >= size and room - occupancy.taken[block] >= size:
            best, overlap, area = _better_place(blocks, occupancy, block, size, NO, best, overlap, area)
        block = occupancy.old_next[block] if base == SPREAD else END
    return best if overlap > 0 else UNPLACED


@leaf
def _better_place(
    blocks: Blocks,
    occupancy: Occupancy,
    block: int,
    size: int,
    all_alike: bool,
    best: int,
    best_overlap: int,
    best_area: int,
) -> tuple[int, int, int]:
    """The better of the best place so far and the best free place in ``block``.

    ``all_alike``: the block is free and has none of the job's old GPUs, so all its places are equally good.
    Returns (first address or UNPLACED, overlap with the job's old GPUs, size of the free area around it).
    """
    owner = occupancy.owner
    former = occupancy.former
    mine = occupancy.mine
    room = blocks.size[block]
    empty = occupancy.taken[block] == 0
    first = blocks.base[block]
    for base in range(first, first + room - size + 1, size):
        overlap = 0
        free = True
        for address in range(base, base + size):
            if owner[address] != FREE or former[address] != FREE:
                free = False
                break
            if mine[address] != FREE:
                overlap += 1
        if not free:
            continue
        # An area of ``least`` GPUs or more loses the comparison below, so nobody asks how large it is.
        least = best_area if best != UNPLACED and overlap <= best_overlap else room
        area = room if empty else _free_area(owner, former, first, room, base, size, least)
        if best == UNPLACED or overlap > best_overlap or (overlap == best_overlap and area < best_area):
            best = base
            best_overlap = overlap
            best_area = area
        if all_alike:
            break
    return best, best_overlap, best_area


@leaf
def _free_area(
    owner: IntArray, former: IntArray, first: int, room: int, base: int, size: int, enough: int
) -> int:
    """Size of the largest aligned area around a free place that is entirely free; any number from ``enough``
    on if it has so many GPUs."""
    area = size
    while 2 * area <= room and area < enough:
        start = first + (base - first) // (2 * area) * (2 * area)
        if start + 2 * area > first + room:
            return area
        for address in range(start, start + 2 * area):
            if owner[address] != FREE or former[address] != FREE:
                return area
        area *= 2
    return area


@kernel
def _take(
    blocks: Blocks,
    occupancy: Occupancy,
    job: int,
    base: int,
    size: int,
    queue: list[tuple[int, int, int, int]],
    rank: IntArray,
) -> None:
    """Give addresses to the job; the jobs that sit there are lifted and queued."""
    owner = occupancy.owner
    former = occupancy.former
    taken = occupancy.taken
    block_of = blocks.block_of
    for address in range(base, base + size):
        other = owner[address]
        if other != FREE:
            other_size = occupancy.size[other]
            lift(blocks, occupancy, other)
            heapq.heappush(queue, (-other_size, 0, rank[other], other))
        if former[address] != FREE:
            former[address] = FREE
        else:
            taken[block_of[address]] += 1
        owner[address] = job


@leaf
def _sit_down(blocks: Blocks, occupancy: Occupancy, job: int, base: int, size: int) -> None:
    """Give addresses to the job that are free and no job's former ones."""
    occupancy.taken[blocks.block_of[base]] += size
    for address in range(base, base + size):
        occupancy.owner[address] = job
    occupancy.base[job] = base


@leaf
def largest_block(blocks: Blocks) -> int:
    """GPUs of the largest block."""
    largest = 0
    for size in blocks.size:
        largest = max(largest, size)
    return largest


@leaf
def take_free_place(
    blocks: Blocks, occupancy: Occupancy, job: int, size: int, largest: int, run: int
) -> bool:
    """Place a job that displaces nobody on part of one block; False if there is no such place.

    ``largest``: GPUs of the largest block. ``run``: number of this pass.
    """
    turn_former_into_mine(blocks, occupancy, job, YES)
    base = free_place(blocks, occupancy, job, size) if size <= largest else UNPLACED
    if base == UNPLACED:
        return False
    _sit_down(blocks, occupancy, job, base, size)
    _settle(blocks, occupancy, job, size, run)
    return True


@leaf
def _settle(blocks: Blocks, occupancy: Occupancy, job: int, size: int, run: int) -> None:
    """Note that the job was placed in this pass; its old place is forgotten."""
    turn_former_into_mine(blocks, occupancy, job, NO)
    occupancy.old_base[job] = UNPLACED
    occupancy.size[job] = size
    occupancy.settled[job] = run


@kernel
def place_queue(
    blocks: Blocks, occupancy: Occupancy, queue: list[tuple[int, int, int, int]], rank: IntArray, run: int
) -> tuple[list[int], list[int]]:
    """Place all queued jobs and the jobs that they displace.

    An entry of the queue is (-size, 0 if the job had GPUs or 1 if it waited, rank, job). ``run``: number of
    this pass; a job that was settled in it does not move. Returns (jobs placed, in order, displaced ones
    included; jobs for which there was no room).
    """
    placed = [0 for _ in range(0)]
    failed = [0 for _ in range(0)]
    largest = largest_block(blocks)
    while len(queue) > 0:
        negative_size, _, _, job = heapq.heappop(queue)
        size = -negative_size
        if take_free_place(blocks, occupancy, job, size, largest, run):
            placed.append(job)
            continue
        base = displacing_place(blocks, occupancy, size, run) if size <= largest else UNPLACED
        if base != UNPLACED:
            _take(blocks, occupancy, job, base, size, queue, rank)
            occupancy.base[job] = base
        else:
            chosen = whole_block_choice(blocks, occupancy, job, size, run)
            for block in chosen:
                _take(blocks, occupancy, job, blocks.base[block], blocks.size[block], queue, rank)
            if chosen.size:
                list_blocks(occupancy, job, chosen)
                occupancy.base[job] = SPREAD
        if occupancy.base[job] == UNPLACED:
            turn_former_into_mine(blocks, occupancy, job, NO)
            occupancy.old_base[job] = UNPLACED
            failed.append(job)
            continue
        _settle(blocks, occupancy, job, size, run)
        placed.append(job)
    return placed, failed
