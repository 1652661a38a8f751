"""Opportunistic use of idle inference servers, without an orchestrator (Lyra section 3.7; spec 2.12).

Jobs that can run on both kinds of GPUs queue for idle inference servers alone, the others for owned ones. What inference takes back is
taken whoever runs there: simulations have the servers chosen at random.

Two kinds of jobs would never end there and queue for owned servers, which the published description leaves open: those
that all servers on loan together cannot hold, and those that last longer than inference is quiet in a day. Where nothing is on
loan at all, as on a live cluster without loans, everybody queues for owned servers.
"""

from __future__ import annotations

import numpy as np

from scheduling.core.arrays import BoolArray
from scheduling.core.base_and_flexible import Demands
from scheduling.core.fleet import Speeds
from scheduling.core.flexible_demands import Growth
from scheduling.core.problem import Problem
from scheduling.core.sharing import Sharing
from scheduling.core.two_phase import Division, TwoPhase, divide
from scheduling.policies.shares_workers import SharesWorkers, chosen_rules

LONGEST_SECONDS = 12 * 3600.0
"""Inference is quiet for about half a day; a job that lasts longer would be stopped every day before its end (ours)."""
LENDABLE_SHARE = 0.5
"""About the largest part of an inference cluster that is ever idle at once (ours)."""


class Opportunistic(SharesWorkers):
    """Shortest first in each of two queues: one for idle inference servers, one for owned servers."""

    name = "opportunistic"
    rules = TwoPhase(growth=Growth.NONE)

    def divided(self, problem: Problem, sharing: Sharing) -> Division:
        """Who gets how many workers where."""
        demands = sharing.demands
        lendable = _lendable_gpus(problem, sharing)
        if lendable:
            demands = _in_two_queues(demands, LENDABLE_SHARE * lendable)
        rules = chosen_rules(self.rules, problem.settings.two_phase)
        return divide(sharing.fleet, sharing.workers(problem.columns), demands, rules)


def _lendable_gpus(problem: Problem, sharing: Sharing) -> int:
    """GPUs of the inference cluster, on loan or not; 0 where there is none."""
    beside = int(sharing.servers.gpus.sum()) - int(problem.blocks.block_of.size)
    return max(beside, int(sharing.servers.gpus[sharing.fleet.on_loan].sum()))


def _in_two_queues(demands: Demands, most_gpus: float) -> Demands:
    """The same jobs, each able to run on one kind of servers alone.

    It looks at a job's whole work, so that a job never changes its queue.
    """
    first = demands.lent.offsets[:-1]
    able = np.diff(demands.lent.offsets) > 0
    at = np.minimum(first, max(demands.lent.workers.size - 1, 0))[able]
    gpus, rate = np.zeros(able.size), np.zeros(able.size)
    gpus[able] = demands.lent.workers[at] * demands.gpus_per_worker[able]
    rate[able] = demands.lent.rate[at]
    seconds = np.divide(demands.work, rate, out=np.full(able.size, np.inf), where=rate > 0.0)
    stays_out = np.diff(demands.owned.offsets) > 0
    stays_out &= (gpus > most_gpus) | (seconds > LONGEST_SECONDS)
    borrows = able & ~stays_out
    return demands._replace(
        owned=_only(demands.owned, ~borrows),
        lent=_only(demands.lent, borrows),
        mixes=np.zeros_like(demands.mixes),
    )


def _only(speeds: Speeds, jobs: BoolArray) -> Speeds:
    """The speeds of these jobs; the others cannot run."""
    entries = np.diff(speeds.offsets)
    kept = np.repeat(jobs, entries)
    offsets = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(np.where(jobs, entries, 0))))
    return Speeds(offsets, speeds.workers[kept], speeds.rate[kept])
