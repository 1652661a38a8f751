"""The tensor profile of a model: its gradients in the order in which a backward pass makes them ready."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isfinite

import numpy as np

from communication.profiles.arrays import Floats, Integers, durations, whole_numbers

#: Possible bytes per element of gradients: FP64, FP32, FP16 and BF16, FP8.
ELEMENT_BYTES = (8, 4, 2, 1)
#: Larger input is rejected as a mistake or an attack.
MOST_TENSORS, MOST_ELEMENTS = 1 << 16, 1 << 48


@dataclass(frozen=True, eq=False)
class ModelProfile:
    """Tensors in order of readiness, and the compute times of an iteration. Profiles with equal digests are
    equal.

    Attributes:
        tensor_names: distinct. elements: of each tensor; 0 is allowed.
        gap_seconds: backward time of each tensor, from the previous one's readiness to its own.
        other_seconds: of an iteration outside the backward pass: forward pass, optimizer, data.
        bytes_per_element: of an uncompressed gradient.

    Raises ValueError for rows of different lengths, no tensor or too many, negative or infinite values.
    """

    name: str
    tensor_names: tuple[str, ...]
    elements: Integers
    gap_seconds: Floats
    other_seconds: float = 0.0
    bytes_per_element: int = 4
    #: SHA-256 of names, sizes and element type, which must be equal on all ranks.
    layout: str = field(init=False)
    #: SHA-256 of all of the above.
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        names = tuple(str(name) for name in self.tensor_names)
        elements = whole_numbers(self.elements, "elements of tensors")
        gaps = durations(self.gap_seconds, "gaps between tensors")
        if not names:
            raise ValueError("the model has no tensors; it must have at least one tensor")
        if not len(names) == len(elements) == len(gaps):
            raise ValueError(
                f"there are {len(names)} names, {len(elements)} sizes and {len(gaps)} "
                "gaps; each tensor needs one of each"
            )
        if len(names) > MOST_TENSORS or elements.sum(dtype=np.float64) > MOST_ELEMENTS:
            raise ValueError(
                f"a model must have at most {MOST_TENSORS} tensors and {MOST_ELEMENTS} elements in total"
            )
        if len(set(names)) != len(names):
            twice = next(name for name, count in Counter(names).items() if count > 1)
            raise ValueError(f"two tensors have the name {twice!r}")
        if not (isfinite(self.other_seconds) and self.other_seconds >= 0.0):
            raise ValueError(f"other_seconds is {self.other_seconds}; it must be finite and not negative")
        if self.bytes_per_element not in ELEMENT_BYTES:
            raise ValueError(f"bytes_per_element is {self.bytes_per_element}; it must be 8, 4, 2 or 1")
        object.__setattr__(self, "tensor_names", names)
        object.__setattr__(self, "elements", elements)
        object.__setattr__(self, "gap_seconds", gaps)
        layout = (names, self.bytes_per_element), elements
        object.__setattr__(self, "layout", _digest(*layout))
        object.__setattr__(self, "digest", _digest((self.name, self.other_seconds), *layout, gaps))

    @classmethod
    def unnamed(
        cls, name: str, elements: Integers, gap_seconds: Floats, other_seconds: float = 0.0
    ) -> ModelProfile:
        """Return a profile whose tensors are named by their numbers."""
        names = tuple(f"tensor {number}" for number in range(len(elements)))
        return cls(name, names, elements, gap_seconds, other_seconds)

    def __len__(self) -> int:
        return len(self.tensor_names)

    @cached_property
    def sizes_bytes(self) -> Integers:
        """Bytes of each uncompressed gradient."""
        sizes = self.elements * self.bytes_per_element
        sizes.flags.writeable = False
        return sizes

    @property
    def parameters(self) -> int:
        """Total elements of all tensors."""
        return int(self.elements.sum())

    @property
    def backward_seconds(self) -> float:
        """Seconds of the whole backward pass."""
        return float(self.gap_seconds.sum())

    @property
    def compute_seconds(self) -> float:
        """Seconds of an iteration on one GPU, without communication."""
        return self.other_seconds + self.backward_seconds

    def with_times(self, backward_seconds: float, other_seconds: float) -> ModelProfile:
        """Return the same tensors on a device of another speed: gaps keep their proportions.

        Raises ValueError if all gaps are 0 and ``backward_seconds`` is positive.
        """
        if self.backward_seconds <= 0.0 < backward_seconds:
            raise ValueError("the gaps are all 0, so they have no proportions to scale")
        factor = backward_seconds / self.backward_seconds if backward_seconds else 0.0
        return replace(self, gap_seconds=self.gap_seconds * factor, other_seconds=other_seconds)

    def with_elements_divided(self, divisor: int) -> ModelProfile:
        """Return the model with smaller tensors, rounded up so that none is empty, and the same times."""
        if divisor < 1:
            raise ValueError(f"divisor is {divisor}; it must be at least 1")
        return replace(self, elements=-(-self.elements // divisor))


def _digest(*parts: tuple[object, ...] | Integers | Floats) -> str:
    content = hashlib.sha256()
    for part in parts:
        data = repr(part).encode() if isinstance(part, tuple) else part.tobytes()
        content.update(len(data).to_bytes(8, "big"))
        content.update(data)
    return content.hexdigest()
