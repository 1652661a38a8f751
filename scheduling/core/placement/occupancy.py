"""Occupancy: which job sits on which GPU, and how a job takes and gives up its place.

A job that fits into a block sits in an aligned part of one block. A larger job takes whole blocks. These are
linked into a list, so that no scan over all blocks is needed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernels.compiling import kernel, leaf, whole
from scheduling.core.placement.buddy_blocks import NOWHERE, Blocks
from scheduling.core.question.arrays import BoolArray
from scheduling.core.question.snapshot import FloatArray, IntArray

FREE = whole(-1)  # owner of an address: no job
BLOCKED = -2  # owner of an address: no job may sit here for now
UNPLACED = -1  # base of a job: it has no place
TIGHT = whole(64)  # displacing a job that a move would make late counts as displacing this many jobs
SPREAD = -2  # base of a job: it takes whole blocks, listed from ``first_block`` on
END = -1  # end of a list of blocks


class Occupancy(NamedTuple):
    """Which job sits where. Kernels change the arrays in place."""

    #: By address: the job that sits there, FREE or BLOCKED.
    owner: IntArray
    #: By address: the job that held it and waits to be placed, or FREE.
    former: IntArray
    #: By address: the job being placed, if the address is one of its old ones, else FREE.
    mine: IntArray
    #: By block: number of addresses with an owner or a former owner.
    taken: IntArray
    #: By block: next block of the SPREAD job that holds it, or END.
    next_block: IntArray
    #: By block: next block of the SPREAD job that held it before it was lifted, or END.
    old_next: IntArray
    #: By job: first address of its place, SPREAD, or UNPLACED.
    base: IntArray
    #: By job: GPUs of its place.
    size: IntArray
    #: By job: first block of a SPREAD job.
    first_block: IntArray
    #: By job: ``base`` of the place that it lost.
    old_base: IntArray
    #: By job: ``size`` of the place that it lost.
    old_size: IntArray
    #: By job: ``first_block`` of the place that it lost.
    old_first: IntArray
    #: By job: number of the pass in which it was placed.
    settled: IntArray
    #: By job: seconds between its finish and its latest finish; infinity without a promise.
    slack: FloatArray
    #: By job: the most seconds that a move costs it.
    move_seconds: FloatArray


@kernel
def empty_occupancy(blocks: Blocks, blocked: IntArray, jobs: int) -> Occupancy:
    """An occupancy without any job placed, with the ``blocked`` addresses marked, for ``jobs`` jobs."""
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
    """Enter the present placements of ``jobs``.

    ``addresses[offsets[i]:offsets[i + 1]]``: GPUs of job i. ``gpus``: how many it has. Returns, by row, True
    for a job whose GPUs are no regular, usable place: neither an aligned part of one block nor a set of whole
    blocks. Such a job counts as without GPUs and must be placed anew.
    """
    homeless = np.zeros(gpus.size, dtype=np.bool_)
    for job in jobs:
        if job >= offsets.size - 1 or offsets[job] == offsets[job + 1]:
            homeless[job] = gpus[job] > 0
            continue
        held = addresses[offsets[job] : offsets[job + 1]]
        if _fits_a_block(blocks, held):
            homeless[job] = not _seat_in_block(blocks, occupancy, job, held)
        else:
            ordered = held if _ascends(held) else np.sort(held)
            homeless[job] = not _seat_on_blocks(blocks, occupancy, job, ordered)
    return homeless


@leaf
def _fits_a_block(blocks: Blocks, held: IntArray) -> bool:
    """Whether the addresses are consecutive and at most as many as the block of the lowest has."""
    low = held[0]
    high = held[0]
    for address in held:
        low = min(low, address)
        high = max(high, address)
    if high - low + 1 != held.size or low < 0 or high >= blocks.block_of.size:
        return False
    block = blocks.block_of[low]
    return bool(block != NOWHERE and held.size <= blocks.size[block])


@leaf
def _seat_in_block(blocks: Blocks, occupancy: Occupancy, job: int, held: IntArray) -> bool:
    """Enter a job that holds part of a block; False if that part is not aligned or not free."""
    low = held[0]
    for address in held:
        low = min(low, address)
    block = blocks.block_of[low]
    start = low - blocks.base[block]
    if start % held.size != 0 or start + held.size > blocks.size[block]:
        return False
    for address in held:
        if occupancy.owner[address] != FREE:
            return False
    for address in held:
        occupancy.owner[address] = job
    occupancy.taken[block] += held.size
    occupancy.base[job] = low
    occupancy.size[job] = held.size
    return True


@leaf
def _ascends(numbers: IntArray) -> bool:
    position = 1
    while position < numbers.size and numbers[position] > numbers[position - 1]:
        position += 1
    return position >= numbers.size


@leaf
def _seat_on_blocks(blocks: Blocks, occupancy: Occupancy, job: int, ordered: IntArray) -> bool:
    """Enter a job on the ascending addresses; False if they are not whole blocks or not free."""
    if not _whole_blocks(blocks, ordered):
        return False
    for address in ordered:
        if occupancy.owner[address] != FREE:
            return False
    last = END
    for address in ordered:
        block = blocks.block_of[address]
        occupancy.owner[address] = job
        occupancy.taken[block] += 1
        if block == last:
            continue
        if last == END:
            occupancy.first_block[job] = block
        else:
            occupancy.next_block[last] = block
        last = block
    occupancy.next_block[last] = END
    occupancy.base[job] = SPREAD
    occupancy.size[job] = ordered.size
    return True


@leaf
def _whole_blocks(blocks: Blocks, ordered: IntArray) -> bool:
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


@leaf
def list_blocks(occupancy: Occupancy, job: int, chosen: IntArray) -> None:
    """Link the blocks ``chosen``, which are ascending, into the list of a SPREAD job."""
    after = END
    for index in range(chosen.size - 1, -1, -1):
        occupancy.next_block[chosen[index]] = after
        after = chosen[index]
    occupancy.first_block[job] = after


@kernel
def addresses_of(blocks: Blocks, occupancy: Occupancy, job: int) -> IntArray:
    """The addresses that a job sits on, ascending."""
    placed = occupancy.base[job] != UNPLACED
    found = np.empty(occupancy.size[job] if placed else 0, dtype=np.int64)
    list_addresses(blocks, occupancy, job, found)
    return found


@leaf
def list_addresses(blocks: Blocks, occupancy: Occupancy, job: int, addresses: IntArray) -> None:
    """Write the addresses that a job sits on to ``addresses``, ascending."""
    base = occupancy.base[job]
    if base >= 0:
        for offset in range(addresses.size):
            addresses[offset] = base + offset
    written = 0
    block = occupancy.first_block[job] if base == SPREAD else END
    while block != END:
        for address in range(blocks.base[block], blocks.base[block] + blocks.size[block]):
            addresses[written] = address
            written += 1
        block = occupancy.next_block[block]


@leaf
def note_holder(blocks: Blocks, occupancy: Occupancy, job: int, holder_of: IntArray, holder: int) -> None:
    """Set ``holder_of`` to ``holder`` at all addresses that the job sits on."""
    base = occupancy.base[job]
    if base >= 0:
        for address in range(base, base + occupancy.size[job]):
            holder_of[address] = holder
    block = occupancy.first_block[job] if base == SPREAD else END
    while block != END:
        for address in range(blocks.base[block], blocks.base[block] + blocks.size[block]):
            holder_of[address] = holder
        block = occupancy.next_block[block]


@leaf
def leave(blocks: Blocks, occupancy: Occupancy, job: int) -> None:
    """Take the job off its place for good."""
    note_holder(blocks, occupancy, job, occupancy.owner, FREE)
    base = occupancy.base[job]
    if base >= 0:
        occupancy.taken[blocks.block_of[base]] -= occupancy.size[job]
    block = occupancy.first_block[job] if base == SPREAD else END
    while block != END:
        occupancy.taken[block] -= blocks.size[block]
        block = occupancy.next_block[block]
    occupancy.base[job] = UNPLACED
    occupancy.size[job] = 0


@leaf
def lift(blocks: Blocks, occupancy: Occupancy, job: int) -> None:
    """Take the job off its place until it is placed again; its addresses are marked as its former ones."""
    note_holder(blocks, occupancy, job, occupancy.owner, FREE)
    note_holder(blocks, occupancy, job, occupancy.former, job)
    if occupancy.base[job] == SPREAD:
        occupancy.old_first[job] = occupancy.first_block[job]
        block = occupancy.first_block[job]
        while block != END:
            occupancy.old_next[block] = occupancy.next_block[block]
            block = occupancy.next_block[block]
    occupancy.old_base[job] = occupancy.base[job]
    occupancy.old_size[job] = occupancy.size[job]
    occupancy.base[job] = UNPLACED
    occupancy.size[job] = 0
