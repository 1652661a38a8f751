"""Which participant owns which units of a tensor, and where in its part each lies (Zen 3.3.3).

Units are counted from 0 here, and hashed as they are counted in the paper, from 1.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from communication.hooks.zen.hashing import murmur3


class Partitions(Protocol):
    """Every unit in exactly one part, the same on all ranks. Positions in a part ascend with units."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Units of each part."""

    def parts_of(self, units: Tensor) -> Tensor:
        """The part of each unit."""

    def positions_of(self, units: Tensor) -> Tensor:
        """Where in its part each unit lies."""

    def units_of(self, part: int, positions: Tensor) -> Tensor:
        """The units at these positions of a part."""


class HashedPartitions:
    """Parts by the first-level hash: even wherever the non-zeros of a tensor lie.

    Tables of P_i and of positions take eight bytes for each unit; they are made once for a generation.
    """

    def __init__(self, units: int, parts: int, seed: int, device: torch.device) -> None:
        self._parts, self._seed = parts, seed
        part = self.parts_of(torch.arange(units, device=device))
        order = torch.argsort(part, stable=True)
        counts = torch.bincount(part, minlength=parts)
        begins = counts.cumsum(0) - counts
        position = torch.arange(units, device=device) - begins[part[order]]
        self._members = order.to(torch.int32)
        self._position = torch.empty(units, dtype=torch.int32, device=device)
        self._position[order] = position.to(torch.int32)
        self.sizes = tuple(counts.tolist())
        self._begins = tuple(begins.tolist())

    def parts_of(self, units: Tensor) -> Tensor:
        """h0 of each."""
        return murmur3(units + 1, self._seed) % self._parts

    def positions_of(self, units: Tensor) -> Tensor:
        """Its place in P_i."""
        return self._position[units].long()

    def units_of(self, part: int, positions: Tensor) -> Tensor:
        """Members of P_i."""
        return self._members[positions + self._begins[part]].long()


class ContiguousPartitions:
    """Runs of units, as parameter servers have them: as uneven as the non-zeros lie. Part i of n begins at
    ``i * units // n``."""

    def __init__(self, units: int, parts: int, device: torch.device) -> None:
        begins = [number * units // parts for number in range(parts + 1)]
        self.sizes = tuple(high - low for low, high in pairwise(begins))
        self._begins = begins
        self._edges = torch.tensor(begins[:-1], device=device)

    def parts_of(self, units: Tensor) -> Tensor:
        """The run of each."""
        return torch.bucketize(units, self._edges[1:], right=True)

    def positions_of(self, units: Tensor) -> Tensor:
        """Its place in the run."""
        return units - self._edges[self.parts_of(units)]

    def units_of(self, part: int, positions: Tensor) -> Tensor:
        """Those of a run."""
        return positions + self._begins[part]
