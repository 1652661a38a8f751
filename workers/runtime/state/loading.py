"""Loads a state from shards: each rank reads some of them, and all exchange their parts.

Every shard has one reader, which fills the tensors piece by piece in a separate thread and broadcasts each
piece as it arrives. A shard is thus fetched once for any number of ranks, and fetching, sending and copying
overlap.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from workers.runtime.process_group import broadcast_bytes
from workers.runtime.state.delivery import Held, redistribute
from workers.runtime.state.experts import ExpertStates
from workers.runtime.state.layout import (
    OwnState,
    Path,
    Slice,
    TensorEntry,
    digest_of,
    flat_bytes,
    put_together,
    read_layout,
    torch_dtype,
)
from workers.runtime.state.shards import Shard, ShardError, cut_as, describe_as_bytes, read_description

_log = logging.getLogger(__name__)

CHUNK_BYTES = 8 << 20
#: Maximum number of concurrent broadcasts.
_WINDOW = 4


class OpenShard(Protocol):
    """A shard that one rank reads: its description is known, its bytes are read in order."""

    description: Mapping[str, Any]

    def read_into(self, buffer: memoryview) -> None:
        """Fill the buffer with the next bytes. Raises OSError."""

    def finish(self) -> None:
        """Verify the shard after its last byte. Raise OSError if it differs from what was sent."""


class ShardInMemory:
    """A shard in this process's memory, or in a memory-mapped file."""

    def __init__(self, shard: Shard) -> None:
        self.description: Mapping[str, Any] = shard.description
        self._pieces = shard.pieces()
        self._piece = memoryview(b"")

    def read_into(self, buffer: memoryview) -> None:
        """Fill the buffer with the next bytes."""
        filled = 0
        while filled < len(buffer):
            if not self._piece:
                self._piece = next(self._pieces)
            count = min(len(self._piece), len(buffer) - filled)
            buffer[filled : filled + count] = self._piece[:count]
            self._piece = self._piece[count:]
            filled += count

    def finish(self) -> None:
        """Do nothing: the shard was not transferred."""


@dataclass(frozen=True)
class LoadedState:
    """A state as loaded by a rank.

    Attributes:
        content: the same on every rank, except for spread experts.
        own: own states of the ranks whose shards this rank has read.
    """

    content: Mapping[str, Any]
    own: Sequence[OwnState]


def agree(fine: bool, group: dist.ProcessGroup | None = None) -> bool:
    """Return whether `fine` holds on every rank of the group."""
    votes = torch.tensor([int(fine)])
    dist.all_reduce(votes, op=dist.ReduceOp.MIN, group=group)
    return bool(int(votes))


def load_state(
    opened: Mapping[int, OpenShard],
    readers: Sequence[int],
    group: dist.ProcessGroup | None = None,
    *,
    rank: int,
    homes: Mapping[Path, Tensor] = MappingProxyType({}),
    experts: ExpertStates | None = None,
) -> LoadedState | None:
    """Load the state whose shards the ranks of a group have opened; return None if reading a shard failed.

    All ranks call this together and get the same answer.

    Args:
        opened: the shards that this rank reads.
        readers: the rank that reads each shard.
        homes: tensors to receive values into, by path. Those that fit become part of the returned state; if
            reading fails, they hold partial values.
        experts: which ranks get which experts; None if every rank has all.

    Raises:
        ShardError: shards are missing, belong to another state, or do not fit together.
    """
    head = _exchange_head(opened, readers, group)
    try:
        layout = read_layout(head["layout"])
        cuts = cut_as(head["format"], layout, len(readers))
        problem = _misfit(opened, head, layout, cuts) or _unknown_expert(opened, experts)
    except (ValueError, KeyError, TypeError) as error:
        raise ShardError(f"the state's layout makes no sense: {error}") from error
    if not agree(problem is None, group):
        raise ShardError(problem or "another rank's shards do not fit to the others")
    tensors = [_home(entry, homes.get(entry.path)) for entry in layout]
    transfer = _Transfer(layout, tensors, cuts, opened)
    transfer.run(readers, group, rank)
    if not agree(transfer.whole, group):
        return None
    by_path: dict[Path, Tensor] = {entry.path: tensor for entry, tensor in zip(layout, tensors, strict=True)}
    try:
        content = put_together(head["rest"], by_path)
    except (ValueError, KeyError, TypeError) as error:
        raise ShardError(f"the state's values make no sense: {error}") from error
    if experts is not None and experts.hosts.hosts:
        content = _with_experts(content, transfer.experts(), experts)
    return LoadedState(content, transfer.own_states())


def _unknown_expert(opened: Mapping[int, OpenShard], experts: ExpertStates | None) -> str | None:
    """Return why experts in this rank's shards cannot be loaded, or None."""
    for number, shard in opened.items():
        for one in shard.description.get("experts", ()):
            if experts is None or not experts.wanted_by(tuple(one["path"])):
                return f"shard {number} holds {one['path']!r} of an expert that this model does not have"
    return None


def _with_experts(content: Mapping[str, Any], held: Held, experts: ExpertStates) -> dict[str, Any]:
    """Return a state with this rank's experts, read by any rank. All ranks call this together.

    Raises:
        ShardError: an expert is missing or is there twice.
    """
    group = experts.hosts.group
    try:
        mine = redistribute(held, experts.wanted_by, group)
    except ValueError as error:
        raise ShardError(str(error)) from error
    missing = experts.missing(content, mine)
    if not agree(missing is None, group):
        raise ShardError(f"no shard holds {missing}" if missing else "another rank's experts are in no shard")
    return experts.together(content, mine)


def _home(entry: TensorEntry, wanted: Tensor | None) -> Tensor:
    """Return the tensor into which an entry is received."""
    dtype = torch_dtype(entry.dtype)
    if (
        wanted is not None
        and wanted.device.type == "cpu"
        and wanted.layout == torch.strided
        and wanted.is_contiguous()
        and (wanted.dtype, tuple(wanted.shape)) == (dtype, entry.shape)
    ):
        return wanted
    return torch.empty(entry.shape, dtype=dtype)


def _exchange_head(
    opened: Mapping[int, OpenShard], readers: Sequence[int], group: dist.ProcessGroup | None
) -> dict[str, Any]:
    content = None
    if 0 in opened:
        content = describe_as_bytes(Shard(dict(opened[0].description), []))
    content = broadcast_bytes(content, source=readers[0], group=group)
    return read_description(content or b"")


def _misfit(
    opened: Mapping[int, OpenShard],
    head: Mapping[str, Any],
    layout: Sequence[TensorEntry],
    cuts: Sequence[Sequence[Slice]],
) -> str | None:
    """Return why this rank's shards contradict the head (shard 0's description), or None."""
    if head["world_size"] != len(cuts) or head["layout_digest"] != digest_of(layout):
        return "shard 0 contradicts itself"
    for number, shard in opened.items():
        described = shard.description
        for name in ("generation", "iteration", "world_size", "layout_digest"):
            if described[name] != head[name]:
                return f"shard {number} has another {name} than shard 0: {described[name]!r}, {head[name]!r}"
        slices = [(tuple(one["path"]), one["start"], one["count"]) for one in described["slices"]]
        expected = [(layout[one.entry].path, one.start, one.count) for one in cuts[number]]
        if described["shard"] != number or slices != expected:
            return f"shard {number} does not hold the slices that it should"
    return None


@dataclass(frozen=True)
class _Chunk:
    """Slices of one shard that are sent together."""

    shard: int
    slices: tuple[Slice, ...]
    bytes: int


def _chunks(layout: Sequence[TensorEntry], shard: int, slices: Sequence[Slice]) -> Iterator[_Chunk]:
    """Cut slices into chunks of at most CHUNK_BYTES; small slices share a chunk."""
    waiting: list[Slice] = []
    size = 0
    for piece in slices:
        element = layout[piece.entry].element_bytes
        most = max(1, CHUNK_BYTES // element)
        for start in range(piece.start, piece.start + piece.count, most):
            part = Slice(piece.entry, start, min(most, piece.start + piece.count - start))
            if size + part.count * element > CHUNK_BYTES and waiting:
                yield _Chunk(shard, tuple(waiting), size)
                waiting, size = [], 0
            waiting.append(part)
            size += part.count * element
    if waiting:
        yield _Chunk(shard, tuple(waiting), size)


def _in_turns(chunks: Sequence[Sequence[_Chunk]]) -> list[_Chunk]:
    """Return the chunks of all shards in round-robin order, in which every rank sends and receives."""
    longest = max(map(len, chunks), default=0)
    return [some[place] for place in range(longest) for some in chunks if place < len(some)]


def _whole_tensors(described: Sequence[Mapping[str, Any]]) -> dict[Path, Tensor]:
    return {
        tuple(one["path"]): torch.empty(tuple(one["shape"]), dtype=torch_dtype(one["dtype"]))
        for one in described
    }


class _Transfer:
    """Fills a state's tensors from shards that several ranks read."""

    def __init__(
        self,
        layout: Sequence[TensorEntry],
        tensors: Sequence[Tensor],
        cuts: Sequence[Sequence[Slice]],
        opened: Mapping[int, OpenShard],
    ) -> None:
        self._layout = layout
        self._tensors = tensors
        self._chunks = [list(_chunks(layout, shard, slices)) for shard, slices in enumerate(cuts)]
        self._opened = opened
        described = {number: shard.description for number, shard in opened.items()}
        self._experts = {number: _whole_tensors(one.get("experts", ())) for number, one in described.items()}
        self._own = {number: _whole_tensors(one.get("own", ())) for number, one in described.items()}
        self._changed = threading.Condition()
        self._filled = dict.fromkeys(opened, 0)
        #: Whether all of this rank's shards were read without an error.
        self.whole = True

    def run(self, readers: Sequence[int], group: dist.ProcessGroup | None, rank: int) -> None:
        """Read, send and receive everything."""
        threads = [threading.Thread(target=self._read, args=(number,)) for number in self._opened]
        for thread in threads:
            thread.start()
        alone = dist.get_world_size(group) == 1
        under_way: deque[tuple[Any, _Chunk, Tensor, bool]] = deque()
        places = dict.fromkeys(range(len(readers)), 0)
        for chunk in _in_turns(self._chunks) if not alone else ():
            mine = readers[chunk.shard] == rank
            buffer = self._wait_for(chunk, places[chunk.shard]) if mine else self._buffer(chunk)
            places[chunk.shard] += 1
            work = dist.broadcast(buffer, src=readers[chunk.shard], group=group, async_op=True)
            under_way.append((work, chunk, buffer, mine))
            if len(under_way) >= _WINDOW:
                self._land(*under_way.popleft())
        while under_way:
            self._land(*under_way.popleft())
        for thread in threads:
            thread.join()

    def _land(self, work: Any, chunk: _Chunk, buffer: Tensor, mine: bool) -> None:
        work.wait()
        if not mine and len(chunk.slices) > 1:
            self._spread(chunk, buffer)

    def _wait_for(self, chunk: _Chunk, place: int) -> Tensor:
        """Return the chunk's bytes once they are read; arbitrary bytes if reading has failed."""
        with self._changed:
            self._changed.wait_for(lambda: self._filled[chunk.shard] > place or not self.whole)
        buffer = self._buffer(chunk)
        if len(chunk.slices) > 1:
            place_in_buffer = 0
            for piece in chunk.slices:
                source = self._memory(piece)
                buffer[place_in_buffer : place_in_buffer + source.numel()] = source
                place_in_buffer += source.numel()
        return buffer

    def _buffer(self, chunk: _Chunk) -> Tensor:
        """Return the memory of a single slice's tensor, or a buffer for several slices."""
        if len(chunk.slices) == 1:
            return self._memory(chunk.slices[0])
        return torch.empty(chunk.bytes, dtype=torch.uint8)

    def _spread(self, chunk: _Chunk, buffer: Tensor) -> None:
        place = 0
        for piece in chunk.slices:
            target = self._memory(piece)
            target.copy_(buffer[place : place + target.numel()])
            place += target.numel()

    def _memory(self, piece: Slice) -> Tensor:
        return flat_bytes(self._tensors[piece.entry], piece.start, piece.count)

    def _read(self, number: int) -> None:
        """Read one whole shard; runs in a thread."""
        shard = self._opened[number]
        try:
            for chunk in self._chunks[number]:
                for piece in chunk.slices:
                    shard.read_into(memoryview(self._memory(piece).numpy()))
                with self._changed:
                    self._filled[number] += 1
                    self._changed.notify_all()
            for tensor in (*self._experts[number].values(), *self._own[number].values()):
                if tensor.numel():
                    shard.read_into(memoryview(flat_bytes(tensor, 0, tensor.numel()).numpy()))
            shard.finish()
        except Exception as error:  # noqa: BLE001 - an error lost in this thread would leave others waiting
            self._broken_off(number, error)

    def experts(self) -> Held:
        """Return the experts that this rank has read."""
        held = Held()
        for number, shard in self._opened.items():
            held.tensors |= self._experts[number]
            held.rests |= shard.description.get("expert_rests", {})
        return held

    def own_states(self) -> list[OwnState]:
        """Return the own states in the shards that this rank has read, by shard number."""
        states: list[OwnState] = []
        for _number, tensors in sorted(self._own.items()):
            state: dict[str, dict[str, Tensor]] = {}
            for (whose, name), tensor in tensors.items():
                state.setdefault(whose, {})[name] = tensor
            states.append(state)
        return states

    def _broken_off(self, number: int, error: BaseException) -> None:
        _log.warning("reading shard %d was broken off: %s", number, error)
        with self._changed:
            self.whole = False
            self._changed.notify_all()
