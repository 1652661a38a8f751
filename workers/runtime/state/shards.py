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
#: Versions that cut replicated tensors evenly, whatever the size of rank 0's own part.
UNFAIR_FORMAT = 2
#: Versions that wrote a state whole: it is read as a single shard.
WHOLE_STATE_FORMAT = 1
_UNREADABLE = (
    OSError, RuntimeError, pickle.UnpicklingError, EOFError, LookupError, TypeError, ValueError
)  # fmt: skip
_UNREADABLE_DESCRIPTION = (
    RuntimeError, pickle.UnpicklingError, EOFError, LookupError, TypeError, ValueError, AttributeError
)  # fmt: skip
#: Limit for a description without values; it includes the function's plain state.
LARGEST_DESCRIPTION_BYTES = 256 << 20


class ShardError(ValueError):
    """A shard that cannot be read, or does not fit the others."""


@dataclass(frozen=True)
class Shard:
    """Shard `description["shard"]` of a state.

    Attributes:
        description: plain values. `slices` names each slice's tensor, shape, start and number of elements;
            shard 0 also has `rest`, the state without tensors, and `layout`. `experts` names the uncut
            tensors of experts that the rank stores, and `expert_rests` has the rest of their optimizer
            states. `own` names the uncut tensors that only this rank has.
        values: the slices, flat, in the same order; then the experts' tensors; then the rank's own.
        lasting: the part of the description that later shards share, as bytes; empty if not precomputed.
        memory: cached bytes of values, by index.
        left: indices of values that are still on a device; ``copies`` yields their bytes when they are read.
        copies: sub-buffers for the values in `left`; None if there are none.
    """

    description: dict[str, Any]
    values: list[Tensor]
    lasting: bytes = b""
    memory: Mapping[int, memoryview] = field(default_factory=dict)
    left: frozenset[int] = frozenset()
    copies: DeviceCopies | None = None

    def pieces(self) -> Iterator[memoryview]:
        """Yield the values' bytes in order; they share the shard's memory. A piece of values left on a device
        is valid only until the next one is requested."""
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
    """Return a predicate on paths: whether every rank has the tensor (parameters and optimizer states).

    Buffers (each rank's own statistics), the scheduler, generators and the function's own state are saved
    from rank 0.
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
    """Return one rank's shard of a captured state, as cut by `ShardCutter`."""
    return ShardCutter(parameters, rank=rank, world_size=world_size).cut(state, copy=copy, own=own)


class ShardCutter:
    """Cuts one rank's shard out of each state of a generation.

    The parts that shards share are computed once: after every iteration a state has the same thousands of
    tensors, in the same memory.
    """

    def __init__(self, parameters: frozenset[str], *, rank: int, world_size: int) -> None:
        """Begin without a layout.

        Args:
            parameters: names of the model's parameters.
        """
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
        """Return this rank's shard of a captured state.

        Args:
            own: state that only this rank has.
            experts: the experts that this rank stores, which `state` does not contain.
            copy: copy all values; otherwise the shard shares the memory of tensors on the CPU.
            leave: leave values on a device until their bytes are read; not with ``copy``.
        """
        nested = {key: value for key, value in state.items() if key != "history"}
        rest, layout, tensors = take_apart(nested, self._replicated, self._layout)
        if "history" in state:
            # Not walked: it is plain, long and append-only.
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
        """Update the layouts if they changed; fast, as unchanged entries are the same objects."""
        known = (self._layout, self._expert_layout, self._own_layout)
        if known == (layout, expert_layout, own_layout):
            return
        self._layout, self._expert_layout, self._own_layout = layout, expert_layout, own_layout
        layouts = (tuple(layout), tuple(expert_layout), tuple(own_layout))
        self._part = _part(*layouts, self._rank, self._world_size)
        self._views = [_View() for _ in (*self._part.slices, *expert_layout, *own_layout)]


class _View:
    """A cached slice of a tensor, valid while the tensor stays in the same memory; dropped when it moves."""

    def __init__(self) -> None:
        self._pointer: int | None = None
        self._value: Tensor | None = None
        #: The slice's bytes, if cached.
        self.memory: memoryview | None = None

    def of(self, tensor: Tensor, piece: Slice, *, leave: bool) -> Tensor:
        """Return the slice of a tensor. It shares the tensor's memory on the CPU, and on a device with
        `leave`."""
        if leave and tensor.device.type != "cpu":
            return _flat(tensor, piece)
        lasts = tensor.device.type == "cpu" and tensor.is_contiguous() and piece.count > 0
        pointer = tensor.data_ptr() if lasts else None
        if pointer is None or pointer != self._pointer:
            # Drop the cached slice; while it was held, no other tensor could reuse its memory.
            self._pointer, self._value, self.memory = pointer, None, None
            return _slice(tensor, piece, copy=False)
        if self._value is None:
            self._value = _slice(tensor, piece, copy=False)
            self.memory = _memory_of(self._value)
        return self._value


@dataclass(frozen=True)
class _Part:
    """One rank's slices of a layout, and their description in its shards."""

    slices: list[Slice]
    description: Mapping[str, Any]
    described: bytes


def cut_as(state_format: int, layout: Sequence[TensorEntry], shards: int) -> list[list[Slice]]:
    """Return the slices of each shard of a state in this format."""
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
    # A non-contiguous tensor is copied whole for a moment, as its slice has no view.
    return tensor.contiguous().view(-1)[piece.start : piece.start + piece.count]


def _slice(tensor: Tensor, piece: Slice, *, copy: bool) -> Tensor:
    flat = _flat(tensor, piece)
    if flat.device.type != "cpu":
        return flat.cpu()
    return flat.clone() if copy else flat


def describe_as_bytes(shard: Shard) -> bytes:
    """Return the description as bytes, to be sent before the values."""
    if not shard.lasting:
        return to_bytes(shard.description)
    passing = {key: value for key, value in shard.description.items() if key not in _LASTING}
    return to_bytes(passing | {"lasting": shard.lasting})


#: Keys of a description that depend only on the layout.
_LASTING = frozenset({"layout_digest", "slices", "experts", "own", "layout"})


def read_description(content: bytes) -> dict[str, Any]:
    """Return the description written by `describe_as_bytes`.

    Raises:
        ShardError: the content is invalid.
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
    """Write a shard atomically, also in case of a power cut.

    Raises:
        OSError: writing to the disk fails.
    """
    partial = path.with_name(f".{path.name}.partial")
    content = dict(shard.description)
    # torch.save writes a view's whole storage.
    content["values"] = [
        value if value.untyped_storage().nbytes() == value.numel() * value.element_size() else value.clone()
        for value in shard.values
    ]
    try:
        with partial.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
    except RuntimeError as error:  # raised by torch's own writer
        raise OSError(f"{path.name}: {error}") from error
    partial.rename(path)


def read_shard(path: FilePath) -> Shard:
    """Return a shard in a file, memory-mapped.

    Raises:
        ShardError: the file is not a shard, or cannot be read.
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
