"""Collectives as steps of messages between pairs of ranks, by the algorithms that NCCL, gloo and MPI use
(Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH", 2005)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from emulated_links.rates import GRADIENTS, STATE

Reduce = Callable[[Tensor, Tensor], object]


@dataclass(frozen=True)
class Message:
    """A contiguous tensor to or from a rank of the group."""

    peer: int
    tensor: Tensor


class Exchanges(Protocol):
    """The interface of a group that a collective needs."""

    def rank(self) -> int: ...

    def size(self) -> int: ...

    @property
    def latency_bytes(self) -> float:
        """Bytes that the slowest of its links carries during its latency; sending fewer bytes twice is faster
        than a second step."""

    def exchange(
        self, sent: Sequence[Message], received: Sequence[Message], traffic: str, step: int
    ) -> None: ...


def reduction(operation: dist.ReduceOp) -> Reduce:
    """Return the reduction of the second tensor into the first, in place.

    Raises:
        NotImplementedError: for operations that training does not use.
    """
    known: dict[object, Reduce] = {
        dist.ReduceOp.SUM: lambda into, other: into.add_(other),
        dist.ReduceOp.MIN: lambda into, other: torch.minimum(into, other, out=into),
        dist.ReduceOp.MAX: lambda into, other: torch.maximum(into, other, out=into),
        dist.ReduceOp.PRODUCT: lambda into, other: into.mul_(other),
    }
    for candidate, reduce in known.items():
        if operation == candidate:
            return reduce
    raise NotImplementedError(f"{operation} over emulated links")


def all_reduce(group: Exchanges, tensor: Tensor, reduce: Reduce) -> None:
    """Reduce a tensor over all ranks, in place and to the same bits everywhere."""
    flat = tensor.view(-1) if tensor.is_contiguous() else tensor.flatten()
    _all_reduce_flat(group, flat, reduce)
    if flat.data_ptr() != tensor.data_ptr():
        tensor.copy_(flat.view(tensor.shape))


def _all_reduce_flat(group: Exchanges, tensor: Tensor, reduce: Reduce) -> None:
    if group.size() == 1:
        return
    if group.size() & (group.size() - 1):
        _ring(group, tensor, reduce)
    elif tensor.nbytes <= group.latency_bytes:
        _doubling(group, tensor, reduce)
    else:
        _halving_and_doubling(group, tensor, reduce)


def _doubling(group: Exchanges, tensor: Tensor, reduce: Reduce) -> None:
    """Recursive doubling: exchange the whole tensor with a partner twice as far away in each step."""
    distance = 1
    other = torch.empty_like(tensor)
    while distance < group.size():
        partner = group.rank() ^ distance
        group.exchange([Message(partner, tensor)], [Message(partner, other)], GRADIENTS, distance)
        reduce(tensor, other)
        distance *= 2


def _halving_and_doubling(group: Exchanges, tensor: Tensor, reduce: Reduce) -> None:
    """Rabenseifner's algorithm: exchange halves with partners of doubling distance until each rank has
    reduced its part, then reverse. Neighbours, which mostly share a server, exchange the largest parts."""
    kept: list[tuple[Tensor, Tensor, int]] = []
    part, distance = tensor, 1
    while distance < group.size():
        partner = group.rank() ^ distance
        lower, upper = part[: len(part) // 2], part[len(part) // 2 :]
        mine, theirs = (upper, lower) if group.rank() & distance else (lower, upper)
        other = torch.empty_like(mine)
        group.exchange([Message(partner, theirs)], [Message(partner, other)], GRADIENTS, len(kept))
        reduce(mine, other)
        kept.append((mine, theirs, partner))
        part, distance = mine, distance * 2
    for step, (mine, theirs, partner) in enumerate(reversed(kept), start=len(kept)):
        group.exchange([Message(partner, mine)], [Message(partner, theirs)], GRADIENTS, step)


def _ring(group: Exchanges, tensor: Tensor, reduce: Reduce) -> None:
    """A ring, for numbers of ranks that are not a power of two: each part is reduced in one round and
    distributed in a second."""
    size, rank = group.size(), group.rank()
    parts = list(torch.tensor_split(tensor, size))
    after, before = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        mine = parts[(rank - step) % size]
        theirs = parts[(rank - step - 1) % size]
        other = torch.empty_like(theirs)
        group.exchange([Message(after, mine)], [Message(before, other)], GRADIENTS, step)
        reduce(theirs, other)
    for step in range(size - 1):
        mine, theirs = parts[(rank - step + 1) % size], parts[(rank - step) % size]
        group.exchange([Message(after, mine)], [Message(before, theirs)], GRADIENTS, size + step)


def broadcast(group: Exchanges, tensor: Tensor, root: int) -> None:
    """A binomial tree: in each step every rank with the tensor sends it to one without."""
    size = group.size()
    place = (group.rank() - root) % size
    # A non-contiguous tensor is sent as a copy.
    content = tensor.contiguous()
    distance = 1
    while distance < size:
        if place < distance and place + distance < size:
            group.exchange([Message((place + distance + root) % size, content)], [], STATE, distance)
        elif distance <= place < 2 * distance:
            group.exchange([], [Message((place - distance + root) % size, content)], STATE, distance)
        distance *= 2
    if content.data_ptr() != tensor.data_ptr():
        tensor.copy_(content)


def all_gather(group: Exchanges, outputs: Sequence[Tensor], mine: Tensor) -> None:
    """Recursive doubling for powers of two, else a ring."""
    size, rank = group.size(), group.rank()
    gathered = mine.new_empty((size, *mine.shape))
    gathered[rank] = mine
    if size & (size - 1):
        after, before = (rank + 1) % size, (rank - 1) % size
        for step in range(size - 1):
            sent, received = gathered[(rank - step) % size], gathered[(rank - step - 1) % size]
            group.exchange([Message(after, sent)], [Message(before, received)], GRADIENTS, step)
    else:
        distance = 1
        while distance < size:
            partner = rank ^ distance
            mine_from, theirs_from = rank & -distance, partner & -distance
            sent = gathered[mine_from : mine_from + distance]
            received = gathered[theirs_from : theirs_from + distance]
            group.exchange([Message(partner, sent)], [Message(partner, received)], GRADIENTS, distance)
            distance *= 2
    for output, content in zip(outputs, gathered, strict=True):
        output.copy_(content)


def all_to_all(group: Exchanges, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
    """Every rank sends to every other at once, so that all links are used together."""
    size, rank = group.size(), group.rank()
    others = [(rank + step) % size for step in range(1, size)]
    received = {peer: torch.empty_like(outputs[peer]).contiguous() for peer in others}
    group.exchange(
        [Message(peer, inputs[peer].contiguous()) for peer in others],
        [Message(peer, received[peer]) for peer in others],
        GRADIENTS,
        step=0,
    )
    outputs[rank].copy_(inputs[rank])
    for peer in others:
        outputs[peer].copy_(received[peer])


def reduce_scatter(group: Exchanges, output: Tensor, whole: Tensor, reduce: Reduce) -> None:
    """Every rank sends each part to its rank at once; each reduces its own."""
    size, rank = group.size(), group.rank()
    parts = whole.view(size, -1)
    others = [(rank + step) % size for step in range(1, size)]
    received = {peer: torch.empty_like(parts[rank]) for peer in others}
    group.exchange(
        [Message(peer, parts[peer]) for peer in others],
        [Message(peer, received[peer]) for peer in others],
        GRADIENTS,
        step=0,
    )
    reduced = parts[rank].clone()
    for peer in others:
        reduce(reduced, received[peer])
    output.view(-1).copy_(reduced)


def reduce_to_root(group: Exchanges, tensor: Tensor, reduce: Reduce, root: int) -> None:
    """A binomial tree from its leaves to the root; the tensors of other ranks are overwritten."""
    size = group.size()
    place = (group.rank() - root) % size
    content = tensor.contiguous()
    distance = 1
    while distance < size and not place & (distance - 1):
        if place & distance:
            group.exchange([Message((place - distance + root) % size, content)], [], GRADIENTS, distance)
        elif place + distance < size:
            other = torch.empty_like(content)
            group.exchange([], [Message((place + distance + root) % size, other)], GRADIENTS, distance)
            reduce(content, other)
        distance *= 2
    if content.data_ptr() != tensor.data_ptr():
        tensor.copy_(content)


def gather(group: Exchanges, outputs: Sequence[Tensor], mine: Tensor, root: int) -> None:
    """Every rank sends its tensor to the root at once; only the root has outputs."""
    size, rank = group.size(), group.rank()
    if rank != root:
        group.exchange([Message(root, mine.contiguous())], [], GRADIENTS, step=0)
        return
    received = {peer: torch.empty_like(outputs[peer]).contiguous() for peer in range(size) if peer != rank}
    group.exchange([], [Message(peer, tensor) for peer, tensor in received.items()], GRADIENTS, step=0)
    outputs[rank].copy_(mine)
    for peer, tensor in received.items():
        outputs[peer].copy_(tensor)
