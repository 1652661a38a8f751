"""The timeline of an iteration: one GPU stream, one network channel, groups in order (Cupcake 1.2).

The stream computes a group's gradients, encodes them, and goes on with the next group; the network sends
groups in the order in which they are encoded. An iteration ends with its last communication.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from communication.cupcake.partitions import checked_boundaries
from communication.cupcake.problem import FusionProblem
from communication.profiles.arrays import Floats


@dataclass(frozen=True, eq=False)
class Timeline:
    """When each group was encoded, and when its communication began and ended, from the backward pass on.

    ``other_seconds``: of the iteration beside these.
    """

    encoded: Floats
    sent_from: Floats
    sent_until: Floats
    other_seconds: float

    @property
    def iteration_seconds(self) -> float:
        """f: until the last communication ends."""
        return self.other_seconds + float(self.sent_until[-1])

    @property
    def exposed_seconds(self) -> float:
        """Communication that neither computing nor encoding hides."""
        return float(self.sent_until[-1] - self.encoded[-1])


def in_order(work_seconds: Floats, transfer_seconds: Floats, other_seconds: float = 0.0) -> Timeline:
    """The timeline of groups that take so long to compute and encode, and so long to send.

    comm_a = max(comp_a, comm_{a-1}) + g_a, which is the largest of comp_b + g_b + ... + g_a over b <= a.
    """
    encoded = np.cumsum(work_seconds)
    sent = np.cumsum(transfer_seconds)
    started_late = np.maximum.accumulate(encoded - (sent - transfer_seconds))
    until = started_late + sent
    return Timeline(encoded, until - transfer_seconds, until, other_seconds)


def timeline_of(problem: FusionProblem, boundaries: Sequence[int]) -> Timeline:
    """The timeline of a partition. Raises ValueError for boundaries that are none."""
    ends = np.array(checked_boundaries(boundaries, problem.tensors))
    begins = np.concatenate(([0], ends[:-1]))
    return in_order(*problem.work_and_transfer(begins, ends), problem.other_seconds)


def iteration_seconds(problem: FusionProblem, boundaries: Sequence[int]) -> float:
    """f of a partition. Raises ValueError for boundaries that are none."""
    return timeline_of(problem, boundaries).iteration_seconds
