"""What a reclaim does to jobs: the one rule, live and simulated (Lyra section 3.4; spec 2.4.3).

A job that loses one base worker loses all its workers, wherever they are: it is preempted. One that loses
flexible workers alone goes on without these.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scheduling.core.question.arrays import BoolArray
from scheduling.core.question.snapshot import IntArray


class Effects(NamedTuple):
    """``kept``: entries that stay. ``preempted`` and ``scaled_in``: marks of jobs that lose everything, and
    of those that lose some entries and go on."""

    kept: BoolArray
    preempted: BoolArray
    scaled_in: BoolArray


def effects_of(job: IntArray, server: IntArray, base: BoolArray, returned: BoolArray, jobs: int) -> Effects:
    """Of returning the servers that ``returned`` marks.

    An entry is something that a ``job`` (its row, below ``jobs``) has on a ``server``: a GPU, or its workers
    there. ``base`` marks entries that the job cannot do without.
    """
    leaving = returned[server]
    preempted = np.zeros(jobs, dtype=np.bool_)
    preempted[job[leaving & base]] = True
    scaled_in = np.zeros(jobs, dtype=np.bool_)
    scaled_in[job[leaving]] = True
    return Effects(~leaving & ~preempted[job], preempted, scaled_in & ~preempted)
