"""Bid prices: which promises to make when not all can be made (decision 0021).

Every promise counts 1, however much GPU time it takes. So small jobs earn the most promises per GPU second.
Before each deadline the cluster has a fixed amount of GPU time. Promises hold part of it, and expected
newcomers will ask for more (`expected_demand.py`). If the sum exceeds the capacity, the bid price of a GPU
second is 1 over the GPU time of the largest job that still finds room when the smallest are served first.
Otherwise the price is 0. A newcomer bids 1 over its own GPU time. Prudent admission promises its deadline if
the bid is at least seven tenths of the price at every deadline from its own on (`PRUDENT_MARGIN`).

Under the open rule, a newcomer that fits beside the promises pays nothing. The wider search
(`wider_search.py`) plans all promises anew for a newcomer only if its bid reaches the price, or twice the
price where that is asked, and not for a large one once a whole day is known: a job that is squeezed in takes
GPU time from later jobs (decisions 0051, 0053, 0060).

The price is that of the linear relaxation (`relaxation.py`), with past submissions as the forecast. It is
computed again for every newcomer from the capacity that is left: bid-price control (Talluri and van Ryzin
1998) by online linear programming (Agrawal, Wang and Ye 2014; Li and Ye 2022). Prices never change a promise
that was made.
"""

from __future__ import annotations

from functools import cached_property
from math import isfinite
from typing import NamedTuple

import numpy as np

from scheduling.core.elasticflow.expected_demand import ExpectedDemand, is_remembered
from scheduling.core.elasticflow.promises import Promises
from scheduling.core.elasticflow.wider_search import gpu_time_needed
from scheduling.core.plans.charging import planned_gpu_time
from scheduling.core.problem.reasons import KeptRoom, LargeNewcomer
from scheduling.core.question.snapshot import FloatArray, IntArray, Newcomers

PRUDENT_MARGIN = 2.0**0.5
"""A newcomer is refused only if the price is more than this many times its bid: expected jobs may not come.
It is two size steps of the learnt demand, which says nothing finer than one (decision 0053)."""

NO_MARGIN = 1.0
"""The same factor for the wider search. There the newcomer found no free capacity, so no room is withheld."""

TWICE_THE_PRICE = 1.0 / 2.0
"""The same factor where the bid must be at least twice the price. Plans that make room mostly move other
promises to larger levels, which take more GPU time for the same work, so a newcomer that is squeezed in costs
later ones more room than it asks for. In doubt the published rule stands."""

LARGE_FRACTION = 1.0 / 8.0
"""A newcomer is large if it needs more than this fraction of the cluster's GPU time until its deadline; to be
squeezed in it bids twice the price at first, and no bid suffices once a whole day is known. Prices hold for
jobs that are small beside the capacity that they take from (Agrawal, Wang and Ye 2014). A large one takes
the room in which bursts of small jobs would be promised, which a mean of past demand does not show."""

WHOLE_DAY_SECONDS = 86400.0
"""Once this much past is known, no large newcomer is squeezed in, and every other open one bids twice the
price for it. Load follows the time of day, so a shorter past cannot tell a busy day from a busy cluster."""


class Bid(NamedTuple):
    """What a job asks for, and what its bid is compared with."""

    #: GPU seconds that it needs.
    needed: float
    #: When its last iteration must end, in seconds from now.
    due: float
    #: It is outbid if the price is more than this many times its bid.
    margin: float
    #: The demand that the price is computed from.
    demand: ExpectedDemand
    #: Whether promises count at earlier deadlines than their own, with what they must have done by then.
    with_later: bool


class BidPrices:
    """The bid prices of one decision, and the demand that they are computed from.

    ``asked``: True if newcomers are refused to keep room for others (prudent admission). ``demand`` records
    every newcomer that is decided. It stays empty when neither prudent admission nor a search needs a price.
    """

    def __init__(self, admission: Promises) -> None:
        self.admission = admission
        self.problem = admission.problem
        self.asked = self.problem.settings.newcomers is Newcomers.PRUDENT
        self._learning = self.asked or admission.search is not None
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
        if not self._learning or self.problem.stored.length[row] > 0:
            return None
        self._others = self.demand
        needed, due = self._asked_by(row)
        kept = self.kept(row, needed, due) if self.asked else None
        self.demand = self.demand.noted(self.problem.now, int(self.problem.columns.project[row]), needed, due)
        return kept

    def kept(self, row: int, needed: float, due: float) -> KeptRoom | None:
        """The demand of others that outbids a job of ``needed`` GPU seconds due at ``due``, or None.

        ``due``: when its last iteration must end, in seconds from now. Records nothing.
        """
        if not isfinite(needed) or due <= 0.0 or self._full(needed, due):
            return None
        return self._outbid(row, Bid(needed, due, PRUDENT_MARGIN, self.demand, True))

    def outbid(self, row: int) -> KeptRoom | LargeNewcomer | None:
        """Why nobody is moved for a newcomer that found no room; None if it pays for the wider search.

        Once the price rests on a whole day, a large newcomer never does. Before it must bid twice the price,
        as every open newcomer must afterwards.
        """
        needed, due = self._asked_by(row)
        if not isfinite(needed) or due <= 0.0:
            return None
        # Its own submission, which was recorded a moment ago, is no sign of others.
        others = self.demand if self._others is None else self._others
        whole_day = others.seconds >= WHOLE_DAY_SECONDS
        capacity = self.problem.promise_gpus * due
        large = needed > LARGE_FRACTION * capacity
        if large and whole_day:
            return LargeNewcomer(needed, capacity)
        # Under prudent admission the room goes to small newcomers, as the price assumes: one price is enough.
        twice = large or (not self.asked and whole_day)
        margin = TWICE_THE_PRICE if twice else NO_MARGIN
        return self._outbid(row, Bid(needed, due, margin, others, False))

    def _asked_by(self, row: int) -> tuple[float, float]:
        """The newcomer's GPU seconds, and when its last iteration must end in seconds from now."""
        due = float(self.problem.due[row] - self.problem.slack_seconds[row])
        return gpu_time_needed(self.problem, row, due - self.problem.origin), due

    def _full(self, needed: float, due: float) -> bool:
        """Whether promises alone leave less GPU time than the newcomer needs."""
        horizons, promised = self._promised_until(due, None, with_later=True)
        return bool((promised + needed > self.problem.promise_gpus * horizons).any())

    def _outbid(self, row: int, bid: Bid) -> KeptRoom | None:
        """The tightest deadline at which the price outbids the newcomer, or None.

        A project within its equal share of the GPUs competes with its own jobs alone.
        """
        everybody = self._shortfall(bid, None, 1.0)
        projects = bid.demand.projects()
        if everybody is None or projects < 2:
            return everybody
        # The demand of other projects must not push a project out of its equal share.
        project = int(self.problem.columns.project[row])
        mine = self._shortfall(bid, project, 1.0 / projects)
        return None if mine is None else everybody

    def _shortfall(self, bid: Bid, project: int | None, share: float) -> KeptRoom | None:
        """The tightest deadline at which GPU time falls short, or None where it suffices at every one.

        The sum takes promises, the newcomer, and expected jobs smaller than 1/``margin`` of the newcomer.
        ``project``: count that project alone, on the fraction ``share`` of the GPUs; None counts all.
        """
        needed, due, margin, demand = bid.needed, bid.due, bid.margin, bid.demand
        horizons, promised = self._promised_until(due, project, with_later=bid.with_later)
        capacity = share * self.problem.promise_gpus * horizons
        expected = demand.expected(self.problem.now, horizons, below=needed / margin, project=project)
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
            needed / margin,
        )

    def _promised_until(
        self, due: float, project: int | None, *, with_later: bool
    ) -> tuple[FloatArray, FloatArray]:
        """Deadlines from ``due`` on, and the GPU seconds that promises need by each.

        Promises with a later deadline can run behind the newcomer. ``with_later``: they count with the part
        of their work that they cannot do after it, not even at their fastest level. Otherwise they do not
        count at all.
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
        if with_later:
            return horizons, _risen(horizons, ends - self._shortest(rows), ends, needs)
        held = np.concatenate(([0.0], np.cumsum(needs)))
        return horizons, held[np.searchsorted(ends, horizons, side="right")]

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
