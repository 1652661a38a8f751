"""Executes options on all ranks of a placement in one process, from their operations alone.

Exchanges move the ranks' values between lists. Each rank's share of the bytes is counted on receipt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from communication.espresso.operations import (
    Operation,
    operations,
    part_bounds,
    piece_bounds,
)
from communication.espresso.options import Level, Option, Routine, Task
from communication.profiles.placement import PlacementShape

Encode = Callable[[np.ndarray], np.ndarray]
Payload = list[np.ndarray]


@dataclass
class Rank:
    """The content of one rank: sums of its part, a stack of payloads, or nothing while others continue."""

    server: int
    gpu: int
    sums: np.ndarray | None = None
    stack: list[Payload] | None = None
    received_bytes: list[int] = field(default_factory=list)


def carry_out(
    option: Option,
    shape: PlacementShape,
    gradients: np.ndarray,
    encode: Encode = lambda values: values,
    decode: Encode = lambda piece: piece,
) -> list[Rank]:
    """Return all ranks after the last operation. ``gradients``: one row per rank, by server and then by
    GPU."""
    ranks = [
        Rank(server, gpu, gradients[server * shape.gpus_per_server + gpu].copy())
        for server in range(shape.servers)
        for gpu in range(shape.gpus_per_server)
    ]
    elements = gradients.shape[1]
    for operation in operations(option, shape):
        taking_part = [rank for rank in ranks if operation.takes_part(rank.server, rank.gpu)]
        if operation.step.is_codec:
            for rank in taking_part:
                _codec(operation, rank, elements, shape, encode, decode)
            continue
        for group in _groups(operation, taking_part):
            assert len(group) == operation.participants
            _exchange(operation, group, elements, shape)
    return ranks


def _codec(
    operation: Operation,
    rank: Rank,
    elements: int,
    shape: PlacementShape,
    encode: Encode,
    decode: Encode,
) -> None:
    part = part_bounds(elements, operation.cuts, rank.server, rank.gpu, shape)
    pieces = piece_bounds(part, operation.piece_cuts[len(operation.cuts) :])
    assert len(pieces) == operation.pieces
    if operation.step.task is Task.COMP:
        assert rank.sums is not None
        assert len(rank.sums) == len(part)
        rank.stack = [[encode(rank.sums[one.start - part.start : one.stop - part.start]) for one in pieces]]
        rank.sums = None
        return
    assert rank.stack is not None
    assert len(rank.stack) == operation.payloads
    rank.sums = np.sum(
        [np.concatenate([decode(piece) for piece in payload]) for payload in rank.stack], axis=0
    )
    rank.stack = None


def _groups(operation: Operation, ranks: Sequence[Rank]) -> Iterator[list[Rank]]:
    if operation.step.level is Level.FLAT:
        yield list(ranks)
        return
    within = operation.step.level is Level.INTRA
    for key in sorted({rank.server if within else rank.gpu for rank in ranks}):
        yield [rank for rank in ranks if (rank.server if within else rank.gpu) == key]


def _exchange(operation: Operation, group: list[Rank], elements: int, shape: PlacementShape) -> None:
    task, routine = operation.step.task, operation.step.routine
    if routine is Routine.BROADCAST:
        root = group[0]
        for rank in group[1:]:
            rank.sums = None if root.sums is None else root.sums.copy()
            rank.stack = None if root.stack is None else [list(payload) for payload in root.stack]
            rank.received_bytes.append(_held_bytes(rank))
    elif operation.compressed:
        _exchange_payloads(operation, group)
    elif task is Task.COMM2:
        parts = _sums(group)
        _received(group, parts[0])
        whole = np.concatenate(parts)
        for rank in group:
            rank.sums = whole.copy()
    else:
        total = np.sum(_sums(group), axis=0)
        _divide_sums(operation, group, total, elements, shape)


def _sums(group: list[Rank]) -> list[np.ndarray]:
    """Return the sums of each rank; every rank must hold some."""
    sums = [rank.sums for rank in group if rank.sums is not None]
    assert len(sums) == len(group)
    return sums


def _divide_sums(
    operation: Operation, group: list[Rank], total: np.ndarray, elements: int, shape: PlacementShape
) -> None:
    routine = operation.step.routine
    for number, rank in enumerate(group):
        if routine is Routine.ALL_REDUCE:
            rank.sums = total.copy()
        elif routine is Routine.REDUCE:
            rank.sums = total.copy() if number == 0 else None
        else:
            before = part_bounds(elements, operation.cuts, rank.server, rank.gpu, shape)
            width = -(-len(before) // len(group))
            rank.sums = total[number * width : (number + 1) * width].copy()


def _exchange_payloads(operation: Operation, group: list[Rank]) -> None:
    stacks = [rank.stack for rank in group if rank.stack is not None]
    assert [len(stack) for stack in stacks] == [operation.payloads] * len(group)
    task, routine = operation.step.task, operation.step.routine
    if task is Task.COMM2_C:
        slots = [[piece for stack in stacks for piece in stack[slot]] for slot in range(operation.payloads)]
        for rank in group:
            rank.stack = [list(slot) for slot in slots]
        _received_payloads(group, stacks)
    elif routine is Routine.ALL_TO_ALL:
        share = operation.pieces // len(group)
        for number, rank in enumerate(group):
            mine = slice(number * share, (number + 1) * share)
            rank.stack = [payload[mine] for stack in stacks for payload in stack]
            others = [
                payload[mine] for from_, stack in enumerate(stacks) if from_ != number for payload in stack
            ]
            rank.received_bytes.append(_bytes(others))
    else:
        everything = [payload for stack in stacks for payload in stack]
        for number, rank in enumerate(group):
            rank.stack = list(everything) if routine is Routine.ALL_GATHER or number == 0 else None
        _received_payloads(group, stacks)


def _received(group: list[Rank], part: np.ndarray) -> None:
    for rank in group:
        rank.received_bytes.append((len(group) - 1) * part.nbytes)


def _received_payloads(group: list[Rank], stacks: list[list[Payload]]) -> None:
    for number, rank in enumerate(group):
        others = [payload for from_, stack in enumerate(stacks) if from_ != number for payload in stack]
        rank.received_bytes.append(_bytes(others))


def _held_bytes(rank: Rank) -> int:
    return rank.sums.nbytes if rank.sums is not None else _bytes(rank.stack or [])


def _bytes(payloads: Sequence[Payload]) -> int:
    return sum(piece.nbytes for payload in payloads for piece in payload)
