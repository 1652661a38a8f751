"""The tensors of a state, and how they are cut into shards.

The cut is a pure function of the layout and the number of shards, so ranks agree on it without communication,
and a state cut for one number of ranks can be read by any other.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from workers.runtime.state.portable import PLAIN, TYPE, UnstorableError, as_key, decode, encode

#: State that one rank alone has, such as residuals: by kind of synchroniser, then by name.
OwnState = Mapping[str, Mapping[str, Tensor]]
#: Maximum nesting of lists and dicts, as every level takes some of Python's stack.
_DEEPEST = 100
#: A tensor's place in a nested state: the keys and indices that lead to it.
Path = tuple[Any, ...]


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a state.

    Attributes:
        dtype: its name in torch, such as `float32`.
        replicated: whether every rank has the same values; otherwise only rank 0's are kept.
    """

    #: Path of the tensor in the state.
    path: Path
    dtype: str
    shape: tuple[int, ...]
    replicated: bool

    @classmethod
    def of(cls, path: Path, tensor: Tensor, *, replicated: bool) -> TensorEntry:
        """Return the entry of a tensor."""
        return cls(path, dtype_name(tensor.dtype), tuple(tensor.shape), replicated)

    def fits(self, path: Path, tensor: Tensor) -> bool:
        """Return whether this entry describes the tensor, `replicated` aside."""
        return self.path == path and self.shape == tensor.shape and self.dtype == dtype_name(tensor.dtype)

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def element_bytes(self) -> int:
        """Bytes of one element."""
        return torch_dtype(self.dtype).itemsize

    def to_dict(self) -> dict[str, Any]:
        """Return the entry as written into a shard."""
        return dict(self.__dict__)


@dataclass(frozen=True)
class Slice:
    """Elements `start` to `start + count` of one flattened tensor; `entry` is its index in the layout."""

    entry: int
    start: int
    #: Number of elements.
    count: int


@cache
def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype's name in torch, such as `float32`."""
    return str(dtype).removeprefix("torch.")


def torch_dtype(name: str) -> torch.dtype:
    """Return the dtype of a name.

    Raises:
        ValueError: there is none.
    """
    found = getattr(torch, name, None) if name.isidentifier() else None
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name!r} is no dtype")
    return found


def take_apart(
    state: Any, replicated: Callable[[Path], bool], known: Sequence[TensorEntry] = ()
) -> tuple[Any, list[TensorEntry], list[Tensor]]:
    """Split a state: return the rest with None in place of each tensor, the tensors' layout, and the tensors.

    The tensors share memory with the state. Sparse and quantised tensors, which cannot be cut, stay in the
    rest.

    Args:
        known: the layout of an earlier state with the same `replicated`. A tensor like the one at the same
            index there gets the same entry object.

    Raises:
        UnstorableError: a value could not be restored unchanged.
    """
    # A class, as a recursive closure would be a reference cycle that keeps the tensors until collected.
    taking = _Taking(replicated, known)
    rest = taking.walk(state, ())
    return rest, taking.entries, taking.tensors


class _Taking:
    """The working state of `take_apart`."""

    def __init__(self, replicated: Callable[[Path], bool], known: Sequence[TensorEntry]) -> None:
        self.entries: list[TensorEntry] = []
        self.tensors: list[Tensor] = []
        self._replicated = replicated
        self._known = known

    def walk(self, value: Any, path: Path) -> Any:
        """Return a value without its tensors."""
        # Fast path: most of a state's thousands of values are plain, and this runs after every iteration.
        kind = type(value)
        if kind in PLAIN:
            return value
        if isinstance(value, Tensor) and value.layout == torch.strided and not value.is_quantized:
            self._note(value, path)
            return None
        if len(path) > _DEEPEST:
            raise UnstorableError(
                path[:3], f"holds itself, or more than {_DEEPEST} levels of lists and dicts"
            )
        # torch returns a module's tensors as an OrderedDict, and accepts a plain dict.
        if path == ("model",) and isinstance(value, Mapping):
            return self._mapping(value, path)
        if kind is dict:
            if TYPE in value:
                raise UnstorableError(path, f"has the key {TYPE!r}")
            return self._mapping(value, path)
        if kind is list or kind is tuple or kind is torch.Size:
            made = list if kind is list else tuple
            if PLAIN.issuperset(map(type, value)):
                return made(value)
            return made(self.walk(inner, (*path, place)) for place, inner in enumerate(value))
        encoded = encode(value, path)
        return self._mapping(encoded, path) if type(encoded) is dict else encoded

    def _mapping(self, mapping: Mapping[Any, Any], path: Path) -> dict[Any, Any]:
        left = {}
        for key, inner in mapping.items():
            own = key if type(key) in PLAIN else as_key(key, path)
            left[own] = self.walk(inner, (*path, own))
        return left

    def _note(self, tensor: Tensor, path: Path) -> None:
        place = len(self.entries)
        if place < len(self._known) and self._known[place].fits(path, tensor):
            self.entries.append(self._known[place])
        else:
            self.entries.append(TensorEntry.of(path, tensor, replicated=self._replicated(path)))
        self.tensors.append(tensor.detach() if tensor.requires_grad else tensor)


def put_together(rest: Any, tensors: Mapping[Path, Tensor]) -> Any:
    """Return the state that `take_apart` split."""

    def walk(value: Any, path: Path) -> Any:
        if path in tensors:
            return tensors[path]
        if isinstance(value, dict):
            found = {key: walk(inner, (*path, key)) for key, inner in value.items()}
            return decode(found) if TYPE in found else found
        if isinstance(value, list):
            return [walk(inner, (*path, place)) for place, inner in enumerate(value)]
        if isinstance(value, tuple):
            return tuple(walk(inner, (*path, place)) for place, inner in enumerate(value))
        return value

    return walk(rest, ())


def read_layout(entries: Iterable[Mapping[str, Any]]) -> list[TensorEntry]:
    """Return a layout from its form in a shard.

    Raises:
        ValueError: it is invalid.
    """
    layout = []
    for entry in entries:
        shape = tuple(entry["shape"])
        if not all(isinstance(size, int) and size >= 0 for size in shape):
            raise ValueError(f"{shape!r} is no shape")
        torch_dtype(entry["dtype"])
        layout.append(TensorEntry(tuple(entry["path"]), entry["dtype"], shape, bool(entry["replicated"])))
    if len({entry.path for entry in layout}) < len(layout):
        raise ValueError("a tensor is named twice")
    return layout


def digest_of(layout: Sequence[TensorEntry]) -> str:
    """Return the SHA-256 of the replicated tensors' paths, types and shapes: if digests differ, so do the
    ranks' states."""
    digest = hashlib.sha256()
    for entry in layout:
        if entry.replicated:
            digest.update(repr((entry.path, entry.dtype, entry.shape)).encode())
    return digest.hexdigest()


def cut(layout: Sequence[TensorEntry], shards: int, *, fair: bool = True) -> list[list[Slice]]:
    """Return each shard's slices, in the order of the layout.

    Tensors of rank 0 alone are in shard 0. The replicated tensors are cut into `shards` runs regardless of
    tensor boundaries; every element is in one slice. All shards have about the same number of bytes in total.
    If rank 0's own tensors exceed that share, shard 0 has nothing else.

    Args:
        fair: False: the runs of replicated bytes are equal, as earlier versions cut.
    """
    cuts: list[list[Slice]] = [[] for _ in range(shards)]
    own = [place for place, entry in enumerate(layout) if not entry.replicated]
    cuts[0] += [Slice(place, 0, layout[place].count) for place in own if layout[place].count]
    sizes = [entry.count * entry.element_bytes for entry in layout]
    alone = sum(sizes[place] for place in own)
    ends = _ends(alone if fair else 0, sum(sizes) - alone, shards)
    begun = 0
    for place, entry in enumerate(layout):
        if not entry.replicated or not entry.count:
            continue
        size = entry.element_bytes
        shard = 0
        start = 0
        while start < entry.count:
            # The shard of this element, and the first element of this tensor in the next shard.
            shard = max(shard, min(shards - 1, bisect_right(ends, begun + start * size)))
            end = min(entry.count, max(start + 1, -(-(ends[shard] - begun) // size)))
            cuts[shard].append(Slice(place, start, end - start))
            start = end
            shard = min(shards - 1, shard + 1)
        begun += entry.count * size
    return cuts


def _ends(alone: int, replicated: int, shards: int) -> list[int]:
    """Return the end of each shard's run of the replicated bytes.

    Args:
        alone: further bytes of shard 0.
    """
    if alone * shards > alone + replicated and shards > 1:
        return [-(-replicated * number // (shards - 1)) for number in range(shards)]
    return [-(-(alone + replicated) * (number + 1) // shards) - alone for number in range(shards)]


def flat_bytes(tensor: Tensor, start: int, count: int) -> Tensor:
    """Return some elements of a contiguous CPU tensor as bytes that share its memory."""
    return tensor.detach().view(-1)[start : start + count].view(torch.uint8)
