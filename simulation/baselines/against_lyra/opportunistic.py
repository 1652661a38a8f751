"""Opportunistic use of idle inference servers, without an orchestrator (Lyra section 3.7).

Jobs that can run on both kinds of GPUs queue only for idle inference servers, other jobs for owned servers. A
reclaim takes servers regardless of their jobs: simulations choose them at random.

Two sorts of jobs would never end there, a case that the published description leaves open: jobs that exceed
all on-loan servers together, and jobs that were preempted several times. They queue for owned servers. On a
cluster without loans all jobs queue for owned servers.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from scheduling.core.lyra.base_and_flexible import Demands
from scheduling.core.lyra.fleet import Speeds
from scheduling.core.lyra.flexible_demands import Growth
from scheduling.core.lyra.tick import Division, TwoPhase, divide
from scheduling.core.problem.problem import Problem
from scheduling.core.question.arrays import BoolArray
from scheduling.core.question.snapshot import FloatArray
from scheduling.core.together.sharing import Sharing
from scheduling.policies.shares_workers import SharesWorkers, chosen_rules

MOST_STOPS = 3
"""A job that was preempted this often, and began anew each time, no longer uses inference servers (ours)."""
LENDABLE_SHARE = 0.5
"""About the largest part of an inference cluster that is idle at any one time (ours)."""


class Opportunistic(SharesWorkers):
    """Shortest first in each of two queues: one for idle inference servers, one for owned servers."""

    name = "opportunistic"
    rules = TwoPhase(growth=Growth.NONE)
    memory_columns: ClassVar[tuple[str, ...]] = ("ran", "stops")

    def divided(self, problem: Problem, sharing: Sharing) -> Division:
        """Number of workers of each job on each server."""
        demands = sharing.demands
        lendable = _lendable_gpus(problem, sharing)
        if lendable:
            demands = _in_two_queues(demands, LENDABLE_SHARE * lendable, _stops(problem))
        rules = chosen_rules(self.rules, problem.settings.two_phase)
        return divide(sharing.fleet, sharing.workers(problem.columns), demands, rules)

    def noted(self, problem: Problem, division: Division) -> FloatArray:
        """Whether each job runs now, and how often it was preempted."""
        runs = np.diff(division.workers.offsets) > 0
        return np.column_stack((runs.astype(np.float64), _stops(problem)))


def _stops(problem: Problem) -> FloatArray:
    """How often each job was preempted: a job that ran at the last decision and holds no GPU now was
    preempted once more."""
    memory = problem.columns.memory
    stopped: FloatArray = memory[:, 1] + ((memory[:, 0] > 0.0) & (problem.columns.gpus == 0))
    return stopped


def _lendable_gpus(problem: Problem, sharing: Sharing) -> int:
    """GPUs of the inference cluster, on loan or not; 0 where there is none."""
    beside = int(sharing.servers.gpus.sum()) - int(problem.blocks.block_of.size)
    return max(beside, int(sharing.servers.gpus[sharing.fleet.on_loan].sum()))


def _in_two_queues(demands: Demands, most_gpus: float, stops: FloatArray) -> Demands:
    """The jobs, each limited to one kind of servers."""
    able = np.diff(demands.lent.offsets) > 0
    at = demands.lent.offsets[:-1][able]
    gpus = np.zeros(able.size)
    gpus[able] = demands.lent.workers[at] * demands.gpus_per_worker[able]
    stays_out = (np.diff(demands.owned.offsets) > 0) & ((gpus > most_gpus) | (stops >= MOST_STOPS))
    borrows = able & ~stays_out
    return demands._replace(
        owned=_only(demands.owned, ~borrows),
        lent=_only(demands.lent, borrows),
        mixes=np.zeros_like(demands.mixes),
    )


def _only(speeds: Speeds, jobs: BoolArray) -> Speeds:
    """The rates of the marked jobs; other jobs cannot run."""
    entries = np.diff(speeds.offsets)
    kept = np.repeat(jobs, entries)
    offsets = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(np.where(jobs, entries, 0))))
    return Speeds(offsets, speeds.workers[kept], speeds.rate[kept])
