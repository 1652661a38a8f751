"""The owner of each unit of a tensor, and the unit's position in the owner's part (Zen 3.3.3).

Units are counted from 0 here, but hashed with numbers from 1, as in the paper.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from communication.hooks.zen.hashing import murmur3


class Partitions(Protocol):
    """Every unit in exactly one part, equal on all ranks. Positions in a part ascend with units."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of units of each part."""

    def parts_of(self, units: Tensor) -> Tensor:
        """Return the part of each unit."""

    def positions_of(self, units: Tensor) -> Tensor:
        """Return the position of each unit in its part."""

    def units_of(self, part: int, positions: Tensor) -> Tensor:
        """Return the units at these positions of a part."""


class HashedPartitions:
    """Parts by the first-level hash: even for any distribution of non-zeros.

    The tables of P_i and of positions take eight bytes per unit; they are computed once per generation.
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
        """Return h0 of each unit."""
        return murmur3(units + 1, self._seed) % self._parts

    def positions_of(self, units: Tensor) -> Tensor:
        """Return the position of each unit in P_i."""
        return self._position[units].long()

    def units_of(self, part: int, positions: Tensor) -> Tensor:
        """Return members of P_i."""
        return self._members[positions + self._begins[part]].long()


class ContiguousPartitions:
    """Runs of units, as in parameter servers: as uneven as the non-zeros. Part i of n begins at
    ``i * units // n``."""

    def __init__(self, units: int, parts: int, device: torch.device) -> None:
        begins = [number * units // parts for number in range(parts + 1)]
        self.sizes = tuple(high - low for low, high in pairwise(begins))
        self._begins = begins
        self._edges = torch.tensor(begins[:-1], device=device)

    def parts_of(self, units: Tensor) -> Tensor:
        """Return the run of each unit."""
        return torch.bucketize(units, self._edges[1:], right=True)

    def positions_of(self, units: Tensor) -> Tensor:
        """Return the position of each unit in its run."""
        return units - self._edges[self.parts_of(units)]

    def units_of(self, part: int, positions: Tensor) -> Tensor:
        """Return the units at these positions of a run."""
        return positions + self._begins[part]
