"""Short digests of a data set's first samples, which show whether all workers have the same data.

Texts, integers and shapes are compared exactly; floating-point numbers and bytes up to rounding, since kinds
of processors round differently. A value of an unknown type is represented by its type's name.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

#: Elements of a tensor and values of a sample that a digest covers.
MOST_ELEMENTS = 1 << 20
MOST_VALUES = 10_000
#: Two samples are the same if their projections differ by at most this share of the larger norm. Between
#: different samples the difference is about as large as the norm.
TOLERANCE = 1e-3
_EXACT = frozenset(
    {torch.bool, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64}
)


@dataclass(frozen=True)
class SampleDigest:
    """The digest of a sample.

    Attributes:
        exact: 48 bits of a hash of the values that are compared exactly.
        projection: sum of all other numbers with fixed random signs.
        norm: Euclidean norm of these numbers.
        bits: a hash of everything, for comparisons within one process.
    """

    exact: int
    projection: float
    norm: float
    bits: bytes = b""

    def is_like(self, other: SampleDigest) -> bool:
        """Return whether the samples are the same up to rounding."""
        close = abs(self.projection - other.projection) <= TOLERANCE * max(self.norm, other.norm)
        return self.exact == other.exact and close


def digest_sample(sample: Any) -> SampleDigest:
    """Return the digest of a sample of any type."""
    reading = _Reading()
    reading.take(sample)
    return SampleDigest(
        int.from_bytes(reading.exact.digest(), "little"),
        reading.projection,
        math.sqrt(reading.square),
        reading.bits.digest(),
    )


class _Reading:
    """An incremental digest of a sample."""

    def __init__(self) -> None:
        self.exact = hashlib.blake2b(digest_size=6)
        self.bits = hashlib.blake2b(digest_size=8)
        self.projection = self.square = 0.0
        self._signs = torch.Generator().manual_seed(0)
        self._left = MOST_VALUES

    def take(self, value: Any) -> None:
        """Add a value."""
        self._left -= 1
        if self._left < 0:
            return
        if isinstance(value, Tensor):
            self._take_tensor(value)
        elif isinstance(value, np.ndarray | np.generic):
            self._take_array(np.asarray(value))
        elif isinstance(value, str):
            # A file's folder differs between workers.
            name = value.rpartition("/")[2] if value.startswith("/") else value
            self._note("str", name.encode(errors="surrogatepass"))
        elif isinstance(value, bool | int | bytes) or value is None:
            self._note(type(value).__name__, value if isinstance(value, bytes) else str(value).encode())
        elif isinstance(value, float):
            self._take_numbers(torch.tensor([value], dtype=torch.float64))
        elif isinstance(value, Mapping):
            self._take_all(value, [part for item in value.items() for part in item])
        elif isinstance(value, list | tuple):
            self._take_all(value, value)
        elif isinstance(value, Set):
            self._take_all(value, sorted(digest_sample(part).bits for part in value))
        elif is_dataclass(value) and not isinstance(value, type):
            self._take_all(value, [getattr(value, field.name, None) for field in fields(value)])
        elif all(hasattr(value, name) for name in ("mode", "size", "tobytes")):  # an image of PIL
            self._note(f"{value.mode}{value.size}")
            self._take_numbers(torch.frombuffer(bytearray(value.tobytes()), dtype=torch.uint8))
        else:
            self._note(type(value).__qualname__)

    def _take_all(self, whole: Any, parts: Sequence[Any]) -> None:
        self._note(f"{type(whole).__name__}{len(parts)}")
        for part in parts:
            self.take(part)

    def _take_array(self, array: np.ndarray[Any, Any]) -> None:
        if array.dtype.hasobject:
            self._take_all(array, array.ravel().tolist())
            return
        try:
            self._take_tensor(torch.from_numpy(np.ascontiguousarray(array).copy()))
        except TypeError:  # an array of texts, times or records
            flat = np.ascontiguousarray(array).ravel()[:MOST_ELEMENTS]
            self._note(f"{array.dtype}{array.shape}", flat.tobytes())

    def _take_tensor(self, tensor: Tensor) -> None:
        tensor = tensor.detach()
        self._note(f"{tensor.dtype}{tuple(tensor.shape)}")
        if tensor.layout == torch.sparse_coo:
            tensor = tensor.coalesce()
            self._take_all(tensor, [tensor.indices(), tensor.values()])
        if tensor.layout != torch.strided or tensor.is_quantized or not tensor.numel():
            return
        flat = tensor.reshape(-1)[:MOST_ELEMENTS].cpu()
        if flat.dtype in _EXACT:
            self._note("", flat.numpy().tobytes())
        else:
            self._take_numbers(flat)

    def _take_numbers(self, flat: Tensor) -> None:
        if flat.is_complex():
            flat = torch.view_as_real(flat).reshape(-1)
        numbers = flat.double()
        self.bits.update(numbers.numpy().tobytes())
        odd = ~numbers.isfinite()
        self._note("", str(int(odd.sum())).encode())
        numbers = numbers.masked_fill(odd, 0.0)
        signs = torch.randint(0, 2, numbers.shape, generator=self._signs, dtype=torch.float64) * 2 - 1
        self.projection += float(numbers @ signs)
        self.square += float(numbers @ numbers)

    def _note(self, what: str, content: bytes = b"") -> None:
        for digest in (self.exact, self.bits):
            digest.update(f"{what}{len(content)}|".encode() + content)
