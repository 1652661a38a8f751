"""Redistribution of uncut tensors among ranks: experts and their optimizer states; no rank holds all of them.

Every rank announces its tensors, so all know the transfers. The bytes are then sent in rounds of one
all-to-all each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from workers.runtime.state.layout import Path, dtype_name, flat_bytes, torch_dtype
from workers.runtime.state.plain import from_bytes, to_bytes

#: Maximum bytes of all ranks together in one round, unless a single tensor is larger.
ROUND_BYTES = 64 << 20


@dataclass
class Held:
    """Tensors and values that a rank holds.

    Attributes:
        tensors: tensors by their paths in a state.
        rests: plain values by path.
    """

    tensors: dict[Path, Tensor] = field(default_factory=dict)
    rests: dict[Path, Any] = field(default_factory=dict)


NO_EXPERTS = Held()


@dataclass(frozen=True)
class _Parcel:
    """One tensor to be sent."""

    #: Path of the tensor in the state.
    path: Path
    #: Name in torch, such as `float32`.
    dtype: str
    shape: tuple[int, ...]
    #: Rank that has the tensor.
    sender: int
    #: Ranks that need the tensor.
    receivers: tuple[int, ...]

    @property
    def bytes(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count * torch_dtype(self.dtype).itemsize


def redistribute(
    held: Held, wanted_by: Callable[[Path], Sequence[int]], group: dist.ProcessGroup | None = None
) -> Held:
    """Return the tensors and values that this rank gets. All ranks of the group call this together.

    Args:
        held: tensors on the CPU; each path is held by one rank.
        wanted_by: returns the ranks of the group that get the value at a path; the same on every rank.

    Raises:
        ValueError: on every rank, if two ranks hold the same path.
    """
    rank = dist.get_rank(group)
    told = _gather_bytes(to_bytes(_description(held)), group)
    parcels: list[_Parcel] = []
    mine = Held()
    seen: set[Path] = set()
    for sender, content in enumerate(told):
        description = from_bytes(content)
        for path, dtype, shape in description["tensors"]:
            receivers = tuple(wanted_by(path))
            parcels.append(_Parcel(path, dtype, tuple(shape), sender, receivers))
        for path, rest in description["rests"].items():
            if rank in wanted_by(path):
                mine.rests[path] = rest
        places = [*(path for path, _, _ in description["tensors"]), *description["rests"]]
        twice = seen.intersection(places)
        if twice or len(set(places)) < len(places):
            raise ValueError(f"two ranks hold {min(twice or places)}")
        seen.update(places)
    for one in parcels:
        if one.sender == rank and rank in one.receivers:
            mine.tensors[one.path] = held.tensors[one.path]
    for some in _rounds(parcels):
        mine.tensors.update(_deliver(some, held, group, rank))
    return mine


def _description(held: Held) -> dict[str, Any]:
    tensors = [(path, dtype_name(one.dtype), tuple(one.shape)) for path, one in held.tensors.items()]
    return {"tensors": tensors, "rests": held.rests}


def _gather_bytes(content: bytes, group: dist.ProcessGroup | None) -> list[bytes]:
    """Return every rank's bytes, on every rank."""
    ranks = dist.get_world_size(group)
    if ranks == 1:
        return [content]
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(ranks)]
    dist.all_gather(sizes, torch.tensor([len(content)]), group=group)
    most = max(map(int, sizes))
    padded = torch.frombuffer(bytearray(content.ljust(most, b"\0")), dtype=torch.uint8)
    found = [torch.empty(most, dtype=torch.uint8) for _ in range(ranks)]
    dist.all_gather(found, padded, group=group)
    return [each[: int(size)].numpy().tobytes() for each, size in zip(found, sizes, strict=True)]


def _rounds(parcels: Sequence[_Parcel]) -> Iterator[list[_Parcel]]:
    """Group the parcels for other ranks into rounds of at most ROUND_BYTES."""
    waiting: list[_Parcel] = []
    size = 0
    for one in parcels:
        travelling = one.bytes * len(set(one.receivers) - {one.sender})
        if not travelling:
            continue
        if waiting and size + travelling > ROUND_BYTES:
            yield waiting
            waiting, size = [], 0
        waiting.append(one)
        size += travelling
    if waiting:
        yield waiting


def _deliver(
    parcels: Sequence[_Parcel], held: Held, group: dist.ProcessGroup | None, rank: int
) -> dict[Path, Tensor]:
    """Run one round; return the tensors that this rank receives."""
    ranks = range(dist.get_world_size(group))
    leaving = [[one for one in parcels if one.sender == rank != to and to in one.receivers] for to in ranks]
    coming = [[one for one in parcels if one.sender == by != rank and rank in one.receivers] for by in ranks]
    sent = [_bytes_of(held.tensors[one.path]) for some in leaving for one in some]
    content = torch.cat(sent) if sent else torch.empty(0, dtype=torch.uint8)
    sizes = [sum(one.bytes for one in some) for some in coming]
    received = torch.empty(sum(sizes), dtype=torch.uint8)
    out_sizes = [sum(one.bytes for one in some) for some in leaving]
    dist.all_to_all_single(received, content, sizes, out_sizes, group=group)
    found: dict[Path, Tensor] = {}
    begun = 0
    for one in (one for some in coming for one in some):
        tensor = torch.empty(one.shape, dtype=torch_dtype(one.dtype))
        flat_bytes(tensor, 0, tensor.numel()).copy_(received[begun : begun + one.bytes])
        found[one.path] = tensor
        begun += one.bytes
    return found


def _bytes_of(tensor: Tensor) -> Tensor:
    return flat_bytes(tensor.contiguous(), 0, tensor.numel())
