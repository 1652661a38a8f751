"""The headers that the ranks of a group exchange before they compute a layer together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from moe.lina.expert_paths import Counts, Probabilities
from moe.lina.popularity import Popularity

#: A rank without a batch, or whose batch has ended.
IDLE = -1
_TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Header:
    """The state of one rank.

    Attributes:
        layer: the layer at which its batch waits, or `IDLE`.
        counts: (experts): its rows at this layer.
        type: type of these rows.
        ahead: the estimate of its tokens for the next layer; None without one.
    """

    layer: int = IDLE
    counts: Counts | None = None
    type: torch.dtype = torch.float32
    ahead: Popularity | None = None

    def numbers(self, most_experts: int) -> Tensor:
        """Return it as numbers, of the same length for all ranks. Float64 holds counts exactly."""
        found = np.zeros(4 + 2 * most_experts)
        found[0] = self.layer
        if self.counts is not None:
            found[1] = _TYPES.index(self.type)
            found[4 : 4 + len(self.counts)] = self.counts
        if self.ahead is not None:
            found[2], found[3] = 1, self.ahead.tokens
            found[4 + most_experts : 4 + most_experts + len(self.ahead.expected)] = self.ahead.expected
        return torch.from_numpy(found)


@dataclass(frozen=True)
class Round:
    """Headers of all ranks: batches that wait at the lowest layer are computed, by all ranks together."""

    layer: int
    type: torch.dtype
    _numbers: Probabilities

    @property
    def is_over(self) -> bool:
        """Whether no rank has a batch."""
        return self.layer == IDLE

    def counts(self, experts: int) -> Counts:
        """Return (ranks, experts): the rows of this layer."""
        is_there = self._numbers[:, 0] == self.layer
        return np.asarray(self._numbers[:, 4 : 4 + experts] * is_there[:, None], dtype=np.int64)

    def ahead(self, experts: int) -> Popularity | None:
        """Return the estimate for the next layer, with `experts` experts, over all tokens."""
        has_estimate = (self._numbers[:, 0] == self.layer) & (self._numbers[:, 2] > 0)
        if not has_estimate.any():
            return None
        rows = self._numbers[has_estimate]
        first = 4 + (self._numbers.shape[1] - 4) // 2
        return Popularity(int(rows[:, 3].sum()), rows[:, first : first + experts].sum(axis=0))


def gather(header: Header, most_experts: int, group: dist.ProcessGroup | None) -> Round:
    """Exchange headers in one small collective of the host."""
    own = header.numbers(most_experts)
    gathered = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, own, group=group)
    numbers = torch.stack(gathered).numpy()
    standing: Sequence[int] = [int(each) for each in numbers[:, 0] if each != IDLE]
    if not standing:
        return Round(IDLE, torch.float32, numbers)
    layer = min(standing)
    row = numbers[numbers[:, 0] == layer][0]
    return Round(layer, _TYPES[int(row[1])], numbers)
