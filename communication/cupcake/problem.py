"""The fusion problem: consecutive tensors, their backward times, and the cost of each possible group."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite

import numpy as np

from communication.cupcake.costs import FREE, AffineCost, Cost
from communication.profiles.arrays import Floats, Integers, durations

#: Limit for the tables, which have an entry for each pair of tensors.
MOST_TENSORS = 2048


@dataclass(frozen=True, eq=False)
class FusionProblem:
    """Tensors in backward order, to be partitioned into consecutive groups.

    Attributes:
        backward_seconds: B of each tensor. sizes_bytes: of each before encoding; 0 is allowed.
        encode: h of a group. transfer: g of an encoded group. other_seconds: A, forward pass and all else.
        ending: cost after the last group's communication, such as decoding it.

    Raises ValueError for rows of different lengths, no tensor, negative or infinite values.
    """

    backward_seconds: Floats
    sizes_bytes: Floats
    encode: Cost
    transfer: Cost
    other_seconds: float = 0.0
    ending: Cost = FREE

    def __post_init__(self) -> None:
        backward = durations(self.backward_seconds, "backward times")
        sizes = durations(np.asarray(self.sizes_bytes, dtype=np.float64), "sizes of tensors")
        if not len(backward) == len(sizes):
            raise ValueError(
                f"there are {len(backward)} backward times and {len(sizes)} sizes; each "
                "tensor needs one of each"
            )
        if not len(sizes):
            raise ValueError("the model has no tensors; it must have at least one tensor")
        if not (isfinite(self.other_seconds) and self.other_seconds >= 0.0):
            raise ValueError(f"other_seconds is {self.other_seconds}; it must be finite and not negative")
        object.__setattr__(self, "backward_seconds", backward)
        object.__setattr__(self, "sizes_bytes", sizes)

    @property
    def tensors(self) -> int:
        """Number of tensors, N."""
        return len(self.sizes_bytes)

    @cached_property
    def backward_until(self) -> Floats:
        """Backward time of the first k tensors, k = 0..N."""
        return np.concatenate(([0.0], np.cumsum(self.backward_seconds)))

    @cached_property
    def bytes_until(self) -> Floats:
        """Bytes of the first k tensors, k = 0..N."""
        return np.concatenate(([0.0], np.cumsum(self.sizes_bytes)))

    @cached_property
    def encode_table(self) -> Floats:
        """h of the group j..k-1 at [j, k]; 0 for j >= k, which is no group. Shape (N + 1, N + 1).

        Raises ValueError, like the other tables, for more than `MOST_TENSORS`.
        """
        return self._of_groups(self.encode)

    @cached_property
    def work_table(self) -> Floats:
        """Backward time and h of the group j..k-1, shaped as `encode_table`."""
        backward = self.backward_until[None, :] - self.backward_until[:, None]
        return np.triu(backward, 1) + self.encode_table

    @cached_property
    def transfer_table(self) -> Floats:
        """g of the group j..k-1, shaped as `encode_table`; for the last group including ``ending``."""
        table = self._of_groups(self.transfer)
        table[:-1, -1] += self.ending(self.bytes_until[-1] - self.bytes_until[:-1])
        return table

    def work_and_transfer(self, begins: Integers, ends: Integers) -> tuple[Floats, Floats]:
        """Return the entries of `work_table` and `transfer_table` for these groups without the tables."""
        sizes = self.bytes_until[ends] - self.bytes_until[begins]
        work = self.backward_until[ends] - self.backward_until[begins] + self.encode(sizes)
        transfer = self.transfer(sizes)
        return work, np.where(ends == self.tensors, transfer + self.ending(sizes), transfer)

    def with_affine_costs(self) -> FusionProblem:
        """Return the problem with fitted affine costs, for algorithms that are exact only for these.

        Fitted over sizes from the smallest tensor to the total, each twice the previous one.
        """
        largest = max(1.0, float(self.bytes_until[-1]))
        smallest = float(np.min(self.sizes_bytes, where=self.sizes_bytes > 0.0, initial=largest))
        sizes = smallest * 2.0 ** np.arange(1.0 + np.log2(largest / smallest))
        encode, transfer = (AffineCost.fitted(sizes, cost(sizes)) for cost in (self.encode, self.transfer))
        return replace(self, encode=encode, transfer=transfer)

    def _of_groups(self, cost: Cost) -> Floats:
        if self.tensors > MOST_TENSORS:
            raise ValueError(
                f"the model has {self.tensors} tensors; exact fusion takes at most {MOST_TENSORS} tensors"
            )
        sizes = np.maximum(self.bytes_until[None, :] - self.bytes_until[:, None], 0.0)
        seconds: Floats = np.triu(cost(sizes), 1)
        return seconds
