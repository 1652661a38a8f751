"""Who sits on which GPU, and how a job takes and gives up its place.

A job of at most a block's size sits in an aligned part of one block. A larger one takes whole blocks, which
are linked into a list, so that finding them costs no look at the others.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scheduling.core.kernels import kernel, whole
from scheduling.core.placement.buddy_blocks import NOWHERE, Blocks
from scheduling.core.question.arrays import BoolArray
from scheduling.core.question.snapshot import FloatArray, IntArray

FREE = -1
BLOCKED = -2  # nobody may sit here for now
UNPLACED = -1
TIGHT = whole(64)  # weighs as so many jobs: one that a move would make late
SPREAD = -2  # takes whole blocks, listed from its first one on
END = -1  # of a list of blocks


class Occupancy(NamedTuple):
    """Who sits where, changed in place.

    Per address: ``owner`` (job or FREE), ``former`` (a job that waits to be placed and held the address),
    ``mine`` (marks the old addresses of the job being placed). Per block: ``taken``, addresses with an owner
    or former; ``next_block`` and ``old_next``, the block after it in the list of the SPREAD job that holds,
    or held, it. Per job: ``base``, ``size`` and ``first_block`` of its place now, ``old_base``, ``old_size``
    and ``old_first`` of the one it lost, ``settled`` (pass in which it was placed), ``slack`` (seconds before
    its deadline, infinity without a promise) and ``move_seconds`` (what a move costs it at most).
    """

    owner: IntArray
    former: IntArray
    mine: IntArray
    taken: IntArray
    next_block: IntArray
    old_next: IntArray
    base: IntArray
    size: IntArray
    first_block: IntArray
    old_base: IntArray
    old_size: IntArray
    old_first: IntArray
    settled: IntArray
    slack: FloatArray
    move_seconds: FloatArray


@kernel
def empty_occupancy(blocks: Blocks, blocked: IntArray, jobs: int) -> Occupancy:
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
        np.full(blocks.base.size, END),
        np.full(blocks.base.size, END),
        np.full(jobs, UNPLACED),
        np.zeros(jobs, dtype=np.int64),
        np.full(jobs, END),
        np.full(jobs, UNPLACED),
        np.zeros(jobs, dtype=np.int64),
        np.full(jobs, END),
        np.zeros(jobs, dtype=np.int64),
        np.full(jobs, np.inf),
        np.zeros(jobs),
    )


@kernel
def seat(
    blocks: Blocks,
    occupancy: Occupancy,
    jobs: IntArray,
    addresses: IntArray,
    offsets: IntArray,
    gpus: IntArray,
) -> BoolArray:
    """Enter present placements of ``jobs``; ``addresses`` and ``offsets`` are those of all jobs.

    Returns True per row for every job that has GPUs (``gpus``) which are no regular, usable place. Regular is
    an aligned part of one block, or a set of whole blocks. A job that is not regular counts as holding
    nothing: it must be placed anew.
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
        if base == SPREAD:
            list_blocks(occupancy, job, np.unique(blocks.block_of[held]))
        occupancy.base[job] = base
        occupancy.size[job] = held.size
    return homeless


@kernel
def _whole_blocks(blocks: Blocks, held: IntArray) -> bool:
    ordered = np.sort(held)
    position = 0
    while position < ordered.size:
        first = ordered[position]
        if first < 0 or first >= blocks.block_of.size:
            return False
        block = blocks.block_of[first]
        if block == NOWHERE or blocks.base[block] != first or position + blocks.size[block] > ordered.size:
            return False
        for offset in range(blocks.size[block]):
            if ordered[position + offset] != first + offset:
                return False
        position += blocks.size[block]
    return True


@kernel
def list_blocks(occupancy: Occupancy, job: int, chosen: IntArray) -> None:
    """Link the blocks, in ascending order, that a SPREAD job takes whole."""
    after = END
    for index in range(chosen.size - 1, -1, -1):
        occupancy.next_block[chosen[index]] = after
        after = chosen[index]
    occupancy.first_block[job] = after


@kernel
def addresses_of(blocks: Blocks, occupancy: Occupancy, job: int) -> IntArray:
    """The GPUs a job sits on, ascending."""
    base = occupancy.base[job]
    found = np.empty(occupancy.size[job] if base != UNPLACED else 0, dtype=np.int64)
    if base >= 0:
        for offset in range(found.size):
            found[offset] = base + offset
        return found
    written = 0
    block = occupancy.first_block[job] if base == SPREAD else END
    while block != END:
        for address in range(blocks.base[block], blocks.base[block] + blocks.size[block]):
            found[written] = address
            written += 1
        block = occupancy.next_block[block]
    return found


@kernel
def leave(blocks: Blocks, occupancy: Occupancy, job: int) -> None:
    """The job gives up its place for good."""
    owner = occupancy.owner
    taken = occupancy.taken
    block_of = blocks.block_of
    for address in addresses_of(blocks, occupancy, job):
        owner[address] = FREE
        taken[block_of[address]] -= 1
    occupancy.base[job] = UNPLACED
    occupancy.size[job] = 0


@kernel
def lift(blocks: Blocks, occupancy: Occupancy, job: int) -> None:
    """The job waits to be placed; its GPUs are remembered as its former ones."""
    owner = occupancy.owner
    former = occupancy.former
    for address in addresses_of(blocks, occupancy, job):
        owner[address] = FREE
        former[address] = job
    if occupancy.base[job] == SPREAD:
        next_block = occupancy.next_block
        old_next = occupancy.old_next
        occupancy.old_first[job] = occupancy.first_block[job]
        block = occupancy.first_block[job]
        while block != END:
            old_next[block] = next_block[block]
            block = next_block[block]
    occupancy.old_base[job] = occupancy.base[job]
    occupancy.old_size[job] = occupancy.size[job]
    occupancy.base[job] = UNPLACED
    occupancy.size[job] = 0
