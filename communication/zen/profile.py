"""The sparsity profile of a tensor: the input of the choice of its scheme."""

from __future__ import annotations

from dataclasses import dataclass

from communication.zen.densification import Densification, Skew, skew_from
from communication.zen.formats import VALUE_BYTES
from communication.zen.indices import checked_elements

#: Default skew: that of the published LSTM, with more than half of its non-zeros in one of 128 parts. Too
#: little skew would favour a parameter server that one full part slows down.
PUBLISHED_SKEW = skew_from(128, 70.0)


@dataclass(frozen=True)
class SparsityProfile:
    """The measured sparsity of a tensor whose gradients are mostly zeros.

    Attributes:
        tensor: its name in the model. elements: |G|.
        width: values that are zero together and share one index, such as a row of an embedding table.
        densification: density of these units by number of workers. skew: of contiguous parts.
        rows: whether the gradient is kept as rows, which cannot be all-reduced: without a plan these are
            gathered. Otherwise it is all-reduced with the others, and any plan may include it.

    Raises ValueError for a width that does not divide the elements, or more units than indices can count.
    """

    tensor: str
    elements: int
    width: int
    densification: Densification
    skew: Skew = PUBLISHED_SKEW
    rows: bool = False

    def __post_init__(self) -> None:
        if self.width < 1 or self.elements < 0 or self.elements % self.width:
            raise ValueError(
                f"{self.tensor} has {self.elements} elements; they must be whole rows of {self.width}"
            )
        checked_elements(self.units)

    @property
    def units(self) -> int:
        """Number of indices: rows, or elements if the width is 1."""
        return self.elements // self.width

    @property
    def dense_bytes(self) -> int:
        """M, with FP32 values."""
        return VALUE_BYTES * self.elements
