"""One rank's part of a state: a description and slices of tensors, in memory or in a file.

A file is one `torch.save`; `torch.load(path, weights_only=True)` reads it without this package
(docs/functions.md).
"""

from __future__ import annotations

import math
import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from pathlib import Path as FilePath
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from workers.runtime.state.delivery import NO_EXPERTS, Held
from workers.runtime.state.device_copies import DeviceCopies, copies_from
from workers.runtime.state.layout import (
    OwnState,
    Slice,
    TensorEntry,
    cut,
    digest_of,
    dtype_name,
    flat_bytes,
    take_apart,
)
from workers.runtime.state.plain import from_bytes, to_bytes

STATE_FORMAT = 3
#: Of versions whose shard 0 had rank 0's own part beside as much of the rest as the others.
UNFAIR_FORMAT = 2
#: Of versions that wrote a state whole: it is read as its only shard.
WHOLE_STATE_FORMAT = 1
_UNREADABLE = (
    OSError, RuntimeError, pickle.UnpicklingError, EOFError, LookupError, TypeError, ValueError
)  # fmt: skip
_UNREADABLE_DESCRIPTION = (
    RuntimeError, pickle.UnpicklingError, EOFError, LookupError, TypeError, ValueError, AttributeError
)  # fmt: skip
#: A description without its slices' values; what a function keeps beside its tensors counts into it.
LARGEST_DESCRIPTION_BYTES = 256 << 20


class ShardError(ValueError):
    """A shard that cannot be read, or that does not fit to the others."""


@dataclass(frozen=True)
class Shard:
    """Shard `description["shard"]` of a state.

    Attributes:
        description: plain values. `slices` names each slice's tensor, shape, start and number of elements;
            shard 0 has `rest`, what the state is without tensors, and `layout` as well. `experts` names the
            tensors of experts that the rank stores, whole, and `expert_rests` what the optimizer keeps of
            them beside tensors. `own` names what the rank has for itself, which is cut for nobody.
        values: the slices, flat, in the same order; then the experts' tensors; then what is its own.
        lasting: what of the description the next shard has too, as bytes; empty where nobody knows.
        memory: bytes of values, by their places, where an earlier shard has had them too.
        left: places of values that are on a device still; their bytes come through ``copies`` when asked for.
    """

    description: dict[str, Any]
    values: list[Tensor]
    lasting: bytes = b""
    memory: Mapping[int, memoryview] = field(default_factory=dict)
    left: frozenset[int] = frozenset()
    copies: DeviceCopies | None = None

    def pieces(self) -> Iterator[memoryview]:
        """The values' bytes, one after the other; they share the shard's memory. Where values were left on a
        device, each piece lasts until the next one is asked for."""
        for left, places in groupby(range(len(self.values)), self.left.__contains__):
            if left:
                assert self.copies is not None
                yield from self.copies.chunks(self.values[place] for place in places)
                continue
            for place in places:
                if self.values[place].numel():
                    yield self.memory[place] if place in self.memory else _memory_of(self.values[place])

    @property
    def bytes(self) -> int:
        """Bytes of all values."""
        return sum(value.nbytes for value in self.values)


def _memory_of(value: Tensor) -> memoryview:
    return memoryview(flat_bytes(value, 0, value.numel()).numpy())


def is_replicated(parameters: frozenset[str]) -> Callable[[tuple[Any, ...]], bool]:
    """Which tensors of a captured state every rank has: parameters and what the optimizer keeps of them.

    Buffers (each rank's own statistics), the scheduler, generators and the function's own state are rank
    0's.
    """

    def check(path: tuple[Any, ...]) -> bool:
        if path[0] == "model":
            return len(path) == 2 and path[1] in parameters
        return path[:2] == ("optimizer", "state")

    return check


def own_shard(
    state: Mapping[str, Any],
    parameters: frozenset[str],
    *,
    rank: int,
    world_size: int,
    copy: bool,
    own: OwnState = MappingProxyType({}),
) -> Shard:
    """One rank's shard of a captured state; as `ShardCutter` cuts it."""
    return ShardCutter(parameters, rank=rank, world_size=world_size).cut(state, copy=copy, own=own)


class ShardCutter:
    """Cuts one rank's shard out of each state of a generation.

    What lasts from shard to shard is worked out once: after every iteration a state has the same thousands
    of tensors, in the same memory.
    """

    def __init__(self, parameters: frozenset[str], *, rank: int, world_size: int) -> None:
        """`parameters`: names of the model's."""
        self._replicated = is_replicated(parameters)
        self._rank = rank
        self._world_size = world_size
        self._layout: list[TensorEntry] = []
        self._expert_layout: list[TensorEntry] = []
        self._own_layout: list[TensorEntry] = []
        self._part = _part((), (), (), rank, world_size)
        self._views: list[_View] = []

    def cut(
        self,
        state: Mapping[str, Any],
        *,
        copy: bool,
        own: OwnState = MappingProxyType({}),
        experts: Held = NO_EXPERTS,
        leave: bool = False,
    ) -> Shard:
        """This rank's shard of a captured state.

        Args:
            own: what this rank has for itself.
            experts: what this rank stores of experts, which the state is without.
            copy: later iterations do not change the shard. Without it, it shares the memory of tensors that
                are on the CPU.
            leave: what is on a device stays there until its bytes are asked for; not with ``copy``.
        """
        nested = {key: value for key, value in state.items() if key != "history"}
        rest, layout, tensors = take_apart(nested, self._replicated, self._layout)
        if "history" in state:
            # Plain, long, and only ever added to.
            rest["history"] = list(state["history"])
        mine = {(whose, name): tensor for whose, kept in own.items() for name, tensor in kept.items()}
        self._lay_out(
            layout,
            [TensorEntry.of(*one, replicated=False) for one in experts.tensors.items()],
            [TensorEntry.of(*one, replicated=False) for one in mine.items()],
        )
        description: dict[str, Any] = {
            "format": STATE_FORMAT,
            "generation": state["generation"],
            "iteration": state["iteration"],
            "shard": self._rank,
            "world_size": self._world_size,
            **self._part.description,
        }
        if self._rank == 0:
            description["rest"] = deepcopy(rest) if copy else rest
        if experts.rests:
            description["expert_rests"] = deepcopy(experts.rests) if copy else experts.rests
        pieces = [(tensors[piece.entry], piece) for piece in self._part.slices]
        whole = [*experts.tensors.values(), *mine.values()]
        pieces += [(tensor.detach(), Slice(0, 0, tensor.numel())) for tensor in whole]
        if copy:
            return Shard(description, [_slice(*one, copy=True) for one in pieces], self._part.described)
        values = [view.of(*one, leave=leave) for view, one in zip(self._views, pieces, strict=True)]
        known = {place: view.memory for place, view in enumerate(self._views) if view.memory is not None}
        devices = {place: value.device for place, value in enumerate(values) if value.device.type != "cpu"}
        copies = copies_from(next(iter(devices.values()))) if devices else None
        return Shard(description, values, self._part.described, known, frozenset(devices), copies)

    def _lay_out(
        self,
        layout: list[TensorEntry],
        expert_layout: list[TensorEntry],
        own_layout: list[TensorEntry],
    ) -> None:
        """What the state consists of now. Entries that stayed are the same objects, so that is soon known."""
        known = (self._layout, self._expert_layout, self._own_layout)
        if known == (layout, expert_layout, own_layout):
            return
        self._layout, self._expert_layout, self._own_layout = layout, expert_layout, own_layout
        layouts = (tuple(layout), tuple(expert_layout), tuple(own_layout))
        self._part = _part(*layouts, self._rank, self._world_size)
        self._views = [_View() for _ in (*self._part.slices, *expert_layout, *own_layout)]


class _View:
    """A slice of a tensor that was in the same memory the last time too; nothing holds on to memory that a
    tensor has left by the next time."""

    def __init__(self) -> None:
        self._pointer: int | None = None
        self._value: Tensor | None = None
        #: The slice's bytes, where they are kept.
        self.memory: memoryview | None = None

    def of(self, tensor: Tensor, piece: Slice, *, leave: bool) -> Tensor:
        """The slice of a tensor that is described as it was before; it shares the memory of one on the CPU,
        and of one on a device where it is to be left there."""
        if leave and tensor.device.type != "cpu":
            return _flat(tensor, piece)
        lasts = tensor.device.type == "cpu" and tensor.is_contiguous() and piece.count > 0
        pointer = tensor.data_ptr() if lasts else None
        if pointer is None or pointer != self._pointer:
            # What is held here keeps its place: no other tensor can come to lie there.
            self._pointer, self._value, self.memory = pointer, None, None
            return _slice(tensor, piece, copy=False)
        if self._value is None:
            self._value = _slice(tensor, piece, copy=False)
            self.memory = _memory_of(self._value)
        return self._value


@dataclass(frozen=True)
class _Part:
    """What one rank has of a layout, and what its shards say of that."""

    slices: list[Slice]
    description: Mapping[str, Any]
    described: bytes


def cut_as(state_format: int, layout: Sequence[TensorEntry], shards: int) -> list[list[Slice]]:
    """The slices of each shard of a state that was written in this format."""
    return cut(layout, shards, fair=state_format > UNFAIR_FORMAT)


@lru_cache(maxsize=4)
def _part(
    layout: tuple[TensorEntry, ...],
    expert_layout: tuple[TensorEntry, ...],
    own_layout: tuple[TensorEntry, ...],
    rank: int,
    world_size: int,
) -> _Part:
    slices = cut_as(STATE_FORMAT, layout, world_size)[rank]
    description: dict[str, Any] = {
        "layout_digest": digest_of(layout),
        "slices": [_describe(layout[piece.entry], piece) for piece in slices],
        "own": [_describe_whole(entry) for entry in own_layout],
    }
    if expert_layout:
        description["experts"] = [_describe_whole(entry) for entry in expert_layout]
    if rank == 0:
        description["layout"] = [entry.to_dict() for entry in layout]
    return _Part(slices, MappingProxyType(description), to_bytes(description))


def _describe(entry: TensorEntry, piece: Slice) -> dict[str, Any]:
    return {
        "path": entry.path,
        "dtype": entry.dtype,
        "shape": entry.shape,
        "start": piece.start,
        "count": piece.count,
    }


def _describe_whole(entry: TensorEntry) -> dict[str, Any]:
    return {"path": entry.path, "dtype": entry.dtype, "shape": entry.shape}


def _flat(tensor: Tensor, piece: Slice) -> Tensor:
    # What is not contiguous is copied whole for a moment: a view of its slice alone cannot be had.
    return tensor.contiguous().view(-1)[piece.start : piece.start + piece.count]


def _slice(tensor: Tensor, piece: Slice, *, copy: bool) -> Tensor:
    flat = _flat(tensor, piece)
    if flat.device.type != "cpu":
        return flat.cpu()
    return flat.clone() if copy else flat


def describe_as_bytes(shard: Shard) -> bytes:
    """The description alone, to be sent ahead of the slices."""
    if not shard.lasting:
        return to_bytes(shard.description)
    passing = {key: value for key, value in shard.description.items() if key not in _LASTING}
    return to_bytes(passing | {"lasting": shard.lasting})


#: Of a description, what is the same as long as the layout is.
_LASTING = frozenset({"layout_digest", "slices", "experts", "own", "layout"})


def read_description(content: bytes) -> dict[str, Any]:
    """What `describe_as_bytes` wrote.

    Raises:
        ShardError: it is something else.
    """
    try:
        found = from_bytes(content)
        if isinstance(found, dict) and "lasting" in found:
            lasting = from_bytes(found.pop("lasting"))
            found |= {key: lasting[key] for key in _LASTING & lasting.keys()}
    except _UNREADABLE_DESCRIPTION as error:
        raise ShardError(f"a shard's description cannot be read: {error}") from error
    return _checked(found)


def write_shard(shard: Shard, path: FilePath) -> None:
    """Write a shard so that it is there whole or not at all, also after a power cut.

    Raises:
        OSError: the disk does not take it.
    """
    partial = path.with_name(f".{path.name}.partial")
    content = dict(shard.description)
    # torch.save writes all the memory that a view is a part of.
    content["values"] = [
        value if value.untyped_storage().nbytes() == value.numel() * value.element_size() else value.clone()
        for value in shard.values
    ]
    try:
        with partial.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
    except RuntimeError as error:  # torch's own writer names no reason
        raise OSError(f"{path.name}: {error}") from error
    partial.rename(path)


def read_shard(path: FilePath) -> Shard:
    """A shard in a file. Its values are read from the disk as they are used.

    Raises:
        ShardError: the file is no shard, or cannot be read.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        if content["format"] == WHOLE_STATE_FORMAT:
            return own_shard(content, frozenset(), rank=0, world_size=1, copy=False)
        description = _checked(content)
        values = description.pop("values")
        counts = [(one["dtype"], one["count"]) for one in description["slices"]]
        whole = [*description.get("experts", ()), *description.get("own", ())]
        counts += [(one["dtype"], math.prod(one["shape"])) for one in whole]
        _check_values(counts, values)
    except ShardError:
        raise
    except _UNREADABLE as error:
        raise ShardError(f"{path.name} is no shard of a state: {error}") from error
    return Shard(description, values)


def _checked(content: Any) -> dict[str, Any]:
    if not isinstance(content, dict) or "format" not in content:
        raise ShardError("this is no shard of a state")
    if content["format"] not in (STATE_FORMAT, UNFAIR_FORMAT):
        raise ShardError(f"a shard has the unknown format {content['format']!r}")
    missing = {
        "generation",
        "iteration",
        "shard",
        "world_size",
        "layout_digest",
        "slices",
        "own",
    } - content.keys()
    if missing:
        raise ShardError(f"a shard lacks {', '.join(sorted(missing))}")
    return content


def _check_values(described: Sequence[tuple[str, int]], values: Any) -> None:
    for place, (expected, value) in enumerate(zip(described, values, strict=True)):
        name = dtype_name(value.dtype)
        if value.dim() != 1 or (name, value.numel()) != expected:
            raise ShardError(f"value {place} of a shard is not as it is described")
