"""Bid prices: which promises to make when not all can be made (decision 0011).

Every promise counts 1, however much GPU time it takes. So small jobs earn the most promises per GPU second.
Before each deadline the cluster has a fixed amount of GPU time. Promises hold part of it, and expected
newcomers will ask for more (`expected_demand.py`). If the sum exceeds the capacity, the bid price of a GPU
second is 1 over the GPU time of the largest job that still finds room when the smallest are served first.
Otherwise the price is 0. A newcomer bids 1 over its own GPU time. Prudent admission promises its deadline if
the bid is at least seven tenths of the price at every deadline from its own on (`PRUDENT_MARGIN`).

The price is that of the linear relaxation (`relaxation.py`), with past submissions as the forecast. It is
computed again for every newcomer from the capacity that is left: bid-price control (Talluri and van Ryzin
1998) by online linear programming (Agrawal, Wang and Ye 2014; Li and Ye 2022). Prices never change a promise
that was made.
"""

from __future__ import annotations

from functools import cached_property
from math import isfinite

import numpy as np

from scheduling.core.elasticflow.expected_demand import ExpectedDemand, is_remembered
from scheduling.core.elasticflow.promises import Promises
from scheduling.core.elasticflow.wider_search import gpu_time_needed
from scheduling.core.plans.charging import planned_gpu_time
from scheduling.core.problem.reasons import KeptRoom
from scheduling.core.question.snapshot import FloatArray, IntArray, Newcomers

PRUDENT_MARGIN = 2.0**0.5
"""A newcomer is refused only if the price is more than this many times its bid: expected jobs may not come.
It is two size steps of the learnt demand, which says nothing finer than one."""


class BidPrices:
    """The bid prices of one decision, and the demand that they are computed from.

    ``is_prudent``: True if newcomers are refused to keep room for others (prudent admission). ``demand``
    records every newcomer that is decided. It stays empty when neither prudent admission nor a search needs
    a price.
    """

    def __init__(self, admission: Promises) -> None:
        self.admission = admission
        self.problem = admission.problem
        self.is_prudent = self.problem.settings.newcomers is Newcomers.PRUDENT
        self._learning = self.is_prudent or admission.search is not None
        self._others: ExpectedDemand | None = None

    @cached_property
    def demand(self) -> ExpectedDemand:
        """The demand so far, read from the cluster's memory on first use."""
        return ExpectedDemand.recalled(self.problem.cluster_memory) if self._learning else ExpectedDemand()

    def memory(self) -> FloatArray:
        """The demand as numbers, for the next decision (`Answer.cluster_memory`)."""
        told = self.problem.cluster_memory
        nothing_new = "demand" not in self.__dict__ and (not told.size or is_remembered(told))
        return told if nothing_new or not self._learning else self.demand.remembered()

    def room_kept_from(self, row: int) -> KeptRoom | None:
        """Record the newcomer in the demand; return the demand of others that outbids it, or None.

        None also where the promises alone leave too little GPU time: admission then refuses for lack of
        capacity. A newcomer that accepts an offer is neither recorded nor priced.
        """
        self._others = None
        if not self._learning or self.problem.accepts_offer(row):
            return None
        self._others = self.demand
        needed, due = self._asked_by(row)
        kept = self.kept(row, needed, due) if self.is_prudent else None
        self.demand = self.demand.noted(self.problem.now, int(self.problem.columns.project[row]), needed, due)
        return kept

    def kept(self, row: int, needed: float, due: float) -> KeptRoom | None:
        """The demand of others that outbids a job of ``needed`` GPU seconds due at ``due``, or None.

        ``due``: when its last iteration must end, in seconds from now. Records nothing.
        """
        if not isfinite(needed) or due <= 0.0 or self._full(needed, due):
            return None
        return self._outbid(row, needed, due)

    def typical_need(self) -> float:
        """GPU seconds that half of the newcomers of late need at most; the newcomer that is decided does not
        count."""
        return (self.demand if self._others is None else self._others).typical()

    def _asked_by(self, row: int) -> tuple[float, float]:
        """The newcomer's GPU seconds, and when its last iteration must end in seconds from now."""
        due = float(self.problem.due[row] - self.problem.slack_seconds[row])
        return gpu_time_needed(self.problem, row, due - self.problem.origin), due

    def _full(self, needed: float, due: float) -> bool:
        """Whether promises alone leave less GPU time than the newcomer needs."""
        horizons, promised = self._promised_until(due, None)
        return bool((promised + needed > self.problem.promise_gpus * horizons).any())

    def _outbid(self, row: int, needed: float, due: float) -> KeptRoom | None:
        """The tightest deadline at which the price outbids the newcomer, or None.

        A project within its equal share of the GPUs competes with its own jobs alone.
        """
        everybody = self._shortfall(needed, due, None, 1.0)
        projects = self.demand.projects()
        if everybody is None or projects < 2:
            return everybody
        # The demand of other projects must not push a project out of its equal share.
        project = int(self.problem.columns.project[row])
        mine = self._shortfall(needed, due, project, 1.0 / projects)
        return None if mine is None else everybody

    def _shortfall(self, needed: float, due: float, project: int | None, share: float) -> KeptRoom | None:
        """The tightest deadline at which GPU time falls short, or None where it suffices at every one.

        The sum takes promises, the newcomer, and expected jobs smaller than 1/`PRUDENT_MARGIN` of the
        newcomer. ``project``: count that project alone, on the fraction ``share`` of the GPUs; None counts
        all.
        """
        largest = needed / PRUDENT_MARGIN
        horizons, promised = self._promised_until(due, project)
        capacity = share * self.problem.promise_gpus * horizons
        expected = self.demand.expected(self.problem.now, horizons, below=largest, project=project)
        short = np.where(expected > 0.0, promised + needed + expected - capacity, 0.0)
        worst = int(np.argmax(short / capacity))
        if short[worst] <= 0.0:
            return None
        return KeptRoom(
            float(horizons[worst]),
            needed,
            float(promised[worst]),
            float(expected[worst]),
            float(capacity[worst]),
            largest,
        )

    def _promised_until(self, due: float, project: int | None) -> tuple[FloatArray, FloatArray]:
        """Deadlines from ``due`` on, and the GPU seconds that promises need by each.

        Promises with a later deadline can run behind the newcomer. They count with the part of their work
        that they cannot do after it, not even at their fastest level.
        """
        problem, admission = self.problem, self.admission
        rows = np.array([row for row in admission.rows if row < problem.count], dtype=np.int64)
        if project is not None:
            rows = rows[problem.columns.project[rows] == project]
        rows = rows[np.argsort(problem.due[rows], kind="stable")]
        ends = problem.due[rows]
        # Pauses of forced moves are left out: plans do not store them, and the verdict must not depend on
        # whether the promise was made in this decision or in an earlier one.
        needs = planned_gpu_time(problem.jobs, admission.plans, rows)
        horizons = np.unique(np.append(ends[ends > due], due))
        return horizons, _risen(horizons, ends - self._shortest(rows), ends, needs)

    def _shortest(self, rows: IntArray) -> FloatArray:
        """Seconds that each job's work takes at its fastest level; at least one."""
        jobs = self.problem.jobs
        usable = np.arange(jobs.throughput.shape[1]) < jobs.level_count[rows][:, None]
        fastest = np.where(usable, jobs.throughput[rows], 0.0).max(axis=1, initial=0.0)
        shortest: FloatArray = np.maximum(1.0, jobs.work[rows] / np.maximum(fastest, 1e-9))
        return shortest


def _risen(horizons: FloatArray, starts: FloatArray, ends: FloatArray, amounts: FloatArray) -> FloatArray:
    """The sum, at each horizon, of amounts that each rise evenly from 0 at its start to all at its end."""
    slopes = amounts / (ends - starts)
    return _rising(horizons, starts, slopes) - _rising(horizons, ends, slopes)


def _rising(horizons: FloatArray, since: FloatArray, slopes: FloatArray) -> FloatArray:
    """The sum, at each horizon, of slopes times the seconds since each began."""
    order = np.argsort(since, kind="stable")
    begun = np.searchsorted(since[order], horizons, side="right")
    slope = np.concatenate(([0.0], np.cumsum(slopes[order])))[begun]
    offset = np.concatenate(([0.0], np.cumsum(slopes[order] * since[order])))[begun]
    risen: FloatArray = slope * horizons - offset
    return risen
