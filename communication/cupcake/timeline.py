"""The timeline of an iteration: one GPU stream, one network channel, groups in order.

The stream computes a group's gradients, encodes them, and continues with the next group. The network sends
groups in the order of encoding. An iteration ends with its last communication.
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
    """When each group is encoded, and when its communication begins and ends, from the start of the backward
    pass.

    ``other_seconds``: of the iteration outside these.
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
        """Communication hidden by neither computing nor encoding."""
        return float(self.sent_until[-1] - self.encoded[-1])


def in_order(work_seconds: Floats, transfer_seconds: Floats, other_seconds: float = 0.0) -> Timeline:
    """Return the timeline of groups from their compute-and-encode times and their transfer times.

    comm_a = max(comp_a, comm_{a-1}) + g_a, which is the maximum of comp_b + g_b + ... + g_a over b <= a.
    """
    encoded = np.cumsum(work_seconds)
    sent = np.cumsum(transfer_seconds)
    started_late = np.maximum.accumulate(encoded - (sent - transfer_seconds))
    until = started_late + sent
    return Timeline(encoded, until - transfer_seconds, until, other_seconds)


def timeline_of(problem: FusionProblem, boundaries: Sequence[int]) -> Timeline:
    """Return the timeline of a partition. Raises ValueError for invalid boundaries."""
    ends = np.array(checked_boundaries(boundaries, problem.tensors))
    begins = np.concatenate(([0], ends[:-1]))
    return in_order(*problem.work_and_transfer(begins, ends), problem.other_seconds)


def iteration_seconds(problem: FusionProblem, boundaries: Sequence[int]) -> float:
    """Return f of a partition. Raises ValueError for invalid boundaries."""
    return timeline_of(problem, boundaries).iteration_seconds
