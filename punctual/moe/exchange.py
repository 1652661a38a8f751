"""The interface between a layer and the transfer of its rows to experts and back.

A layer sorts its rows by expert and has no ranks. Its exchange does everything from there to the outputs, so
different exchanges can split, order and overlap transfers and computation differently.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

#: Computes one expert: receives the expert's id and its rows (rows, width), returns outputs of the same shape
#: and type.
ComputeExpert = Callable[[int, Tensor], Tensor]


class ExpertExchange(ABC):
    """Carries rows to experts and their outputs back.

    All ranks call its methods in the same order, once for each forward pass of a layer.

    Attributes:
        share: this rank's share of the samples of the global batch. A rank whose share is 0 computes a
            sample that does not count, and sends no rows.
    """

    share: float = 1.0

    @property
    @abstractmethod
    def rank(self) -> int:
        """This rank's number. Samples of rank r precede those of rank r + 1 in the global batch."""

    @abstractmethod
    def gather(self, numbers: Tensor) -> Tensor:
        """Return the numbers of all ranks, as (ranks, length) on the host.

        Args:
            numbers: (length): whole numbers on the device of the rows.
        """

    @abstractmethod
    def exchange(self, rows: Tensor, counts: Tensor, compute: ComputeExpert) -> Tensor:
        """Return the experts' outputs for this rank's rows, in the order of the rows; gradients flow back.

        The rows of an expert reach it in the order of ranks, so it computes what it would compute in one
        process. An expert without rows is computed too: its gradient is 0, not absent.

        Args:
            rows: (rows, width), sorted by expert.
            counts: (ranks, experts): number of rows, on the host.
            compute: called for the experts that this rank hosts.
        """

    def watch_combined(self, combined: Tensor) -> Tensor:
        """Return the weighted sums of the outputs. Their gradient announces that of the outputs."""
        return combined


class LocalExchange(ExpertExchange):
    """All experts are in this process."""

    @property
    def rank(self) -> int:
        """Return 0."""
        return 0

    def gather(self, numbers: Tensor) -> Tensor:
        """Return this process's numbers."""
        return numbers.cpu().unsqueeze(0)

    def exchange(self, rows: Tensor, counts: Tensor, compute: ComputeExpert) -> Tensor:
        """Compute the experts one after the other."""
        return compute_experts(rows, counts[0], compute)


def compute_experts(rows: Tensor, counts: Tensor, compute: ComputeExpert) -> Tensor:
    """Compute all experts on rows that are sorted by expert.

    Args:
        counts: (experts): number of rows.
    """
    parts = rows.split(counts.tolist())
    return torch.cat([compute(expert, part) for expert, part in enumerate(parts)])
