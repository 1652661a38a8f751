"""What a reclaim does to jobs, live and in simulation (Lyra section 3.4).

A job that loses a base worker is preempted: it loses all its workers on all servers. A job that loses only
flexible workers continues without them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scheduling.core.question.arrays import BoolArray
from scheduling.core.question.snapshot import IntArray


class Effects(NamedTuple):
    """The effect of returning servers."""

    #: Entries that stay.
    kept: BoolArray
    #: Marks jobs that lose all their workers.
    preempted: BoolArray
    #: Marks jobs that lose some workers and continue.
    scaled_in: BoolArray


def effects_of(job: IntArray, server: IntArray, base: BoolArray, returned: BoolArray, jobs: int) -> Effects:
    """The effect on jobs of returning the servers that ``returned`` marks.

    An entry is what one ``job`` (its row, below ``jobs``) has on one ``server``: a GPU, or its workers there.
    ``base`` marks entries without which the job is preempted.
    """
    leaving = returned[server]
    preempted = np.zeros(jobs, dtype=np.bool_)
    preempted[job[leaving & base]] = True
    scaled_in = np.zeros(jobs, dtype=np.bool_)
    scaled_in[job[leaving]] = True
    return Effects(~leaving & ~preempted[job], preempted, scaled_in & ~preempted)
