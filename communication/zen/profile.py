"""The sparsity profile of a tensor: what the choice of its scheme is made from."""

from __future__ import annotations

from dataclasses import dataclass

from communication.zen.densification import Densification, Skew, skew_from
from communication.zen.formats import VALUE_BYTES
from communication.zen.indices import checked_elements

#: Where it was not measured: that of the published LSTM, more than half of whose non-zeros are in one of 128
#: parts. Too little skew would speak for a parameter server that one full part holds up.
PUBLISHED_SKEW = skew_from(128, 70.0)


@dataclass(frozen=True)
class SparsityProfile:
    """A tensor whose gradients are mostly zeros, as it was measured.

    Attributes:
        tensor: its name in the model. elements: |G|.
        width: values that are zero together, such as a row of an embedding table; one index stands for them.
        densification: shares of these units that are not zero, by workers. skew: of contiguous parts.
        rows: whether the gradient is kept as rows, of which an all-reduce knows nothing: without a plan these
            are gathered. Otherwise it is all-reduced with the others, and any plan may take it.

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
            raise ValueError(f"{self.tensor}: {self.elements} elements are not in rows of {self.width}")
        checked_elements(self.units)

    @property
    def units(self) -> int:
        """What has an index of its own: rows, or elements where the width is 1."""
        return self.elements // self.width

    @property
    def dense_bytes(self) -> int:
        """M, in FP32."""
        return VALUE_BYTES * self.elements
