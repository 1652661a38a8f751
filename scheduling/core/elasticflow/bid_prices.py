"""Bid prices: which promises to make when not all can be (decision 0021).

Every promise counts 1, whatever it takes; so GPU time is worth most to those that need least of it. Until
each deadline there is so much GPU time; promises hold some of it, and newcomers of the kind that came of late
will ask for more. Where that is more than there is, the bid price of a GPU second is what the smallest of
them that just find room pay for one: 1 over their GPU time. A newcomer is promised its deadline if its own
bid, 1 over its GPU time, is not less than half the price at any deadline from its own on. Where there is room
for everybody the price is 0.

Open newcomers pay nothing for room that is there. But all promises are planned anew for one more
(`searching.py`) only if it pays the whole price: what is squeezed in takes what those that just find room
would have had.

The price is that of the linear relaxation (`relaxation.py`) with the past standing for the future, and it is
learnt anew for every newcomer from what is left: bid-price control (Talluri and van Ryzin 1998) by online
linear programming (Agrawal, Wang and Ye 2014; Li and Ye 2022). It changes nothing for those that hold a
promise.
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
from scheduling.core.question.snapshot import FloatArray, Newcomers

MARGIN = 2.0
"""How many times as much as the newcomer others must pay for a GPU second before it is refused for them. What
is expected may not come: a refusal has to win at least two promises for the one that it costs."""

NO_MARGIN = 1.0
"""The same before promises are not planned anew for it: there is no room, so nothing is refused that was
there."""


class BidPrices:
    """The prices of one decision, and what it learns about newcomers.

    ``asked``: whether room is kept (prudent newcomers). ``demand`` takes in every newcomer that is decided.
    Nothing is learnt where neither this nor the search asks for a price.
    """

    def __init__(self, admission: Promises) -> None:
        self.admission = admission
        self.problem = admission.problem
        self.asked = self.problem.settings.newcomers is Newcomers.PRUDENT
        self._learning = self.asked or admission.search is not None

    @cached_property
    def demand(self) -> ExpectedDemand:
        """What came so far: read from the memory by the first newcomer that is decided."""
        return ExpectedDemand.recalled(self.problem.cluster_memory) if self._learning else ExpectedDemand()

    def memory(self) -> FloatArray:
        """What the next decision is to be told (`Answer.cluster_memory`)."""
        told = self.problem.cluster_memory
        nothing_new = "demand" not in self.__dict__ and (not told.size or is_remembered(told))
        return told if nothing_new or not self._learning else self.demand.remembered()

    def room_kept_from(self, row: int) -> KeptRoom | None:
        """Why the newcomer is refused for the sake of others, None where it is not; it is noted for those
        after it.

        None too where promises alone leave too little: then it is refused for that. Who accepts an offer was
        promised already.
        """
        if not self._learning or self.problem.stored.length[row] > 0:
            return None
        needed, due = self._asked_by(row)
        kept = self.kept(row, needed, due) if self.asked else None
        self.demand = self.demand.noted(self.problem.now, int(self.problem.columns.project[row]), needed, due)
        return kept

    def kept(self, row: int, needed: float, due: float) -> KeptRoom | None:
        """The same for any ``due``, in seconds from now; nothing is noted. ``needed``: GPU seconds until
        then."""
        if not isfinite(needed) or due <= 0.0 or self._full(needed, due):
            return None
        return self._outbid(row, needed, due, MARGIN)

    def outbid(self, row: int) -> KeptRoom | None:
        """For whose sake the promises are not planned anew for a newcomer that finds no room; None where it
        pays the price."""
        needed, due = self._asked_by(row)
        return self._outbid(row, needed, due, NO_MARGIN) if isfinite(needed) and due > 0.0 else None

    def _asked_by(self, row: int) -> tuple[float, float]:
        """GPU seconds that the newcomer needs until its last iteration must end, and when that is."""
        due = float(self.problem.due[row]) - self.problem.slack_seconds
        return gpu_time_needed(self.problem, row, due - self.problem.origin), due

    def _full(self, needed: float, due: float) -> bool:
        """Whether promises alone leave less GPU time than the newcomer needs."""
        horizons, promised = self._promised_until(due, None)
        return bool((promised + needed > self.problem.promise_gpus * horizons).any())

    def _outbid(self, row: int, needed: float, due: float, margin: float) -> KeptRoom | None:
        """Where GPU time is dearest, if others pay more than ``margin`` times as much for it as the
        newcomer."""
        everybody = self._shortfall(needed, due, margin, None, 1.0)
        projects = self.demand.projects()
        if everybody is None or projects < 2:
            return everybody
        # Others do not price a project out of its share: within that it competes with itself alone.
        project = int(self.problem.columns.project[row])
        mine = self._shortfall(needed, due, margin, project, 1.0 / projects)
        return None if mine is None else everybody

    def _shortfall(
        self, needed: float, due: float, margin: float, project: int | None, share: float
    ) -> KeptRoom | None:
        """The same among all, or among the newcomers of ``project`` alone on its ``share`` of the GPUs."""
        horizons, promised = self._promised_until(due, project)
        capacity = share * self.problem.promise_gpus * horizons
        expected = self.demand.expected(self.problem.now, horizons, below=needed / margin, project=project)
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
        )

    def _promised_until(self, due: float, project: int | None) -> tuple[FloatArray, FloatArray]:
        """Deadlines from ``due`` on, and the GPU seconds that promises still take until each.

        Promises with earlier deadlines go first, as they can at any time: what is due later moves behind the
        newcomer.
        """
        problem, admission = self.problem, self.admission
        rows = np.array([row for row in admission.rows if row < problem.count], dtype=np.int64)
        if project is not None:
            rows = rows[problem.columns.project[rows] == project]
        order = np.argsort(problem.due[rows], kind="stable")
        ends = problem.due[rows][order]
        # Without charges for moves: those are not kept with the plans, and a verdict must not depend on which
        # decision it falls into.
        needs = planned_gpu_time(problem.jobs, admission.plans, rows[order])
        held = np.concatenate(([0.0], np.cumsum(needs)))
        horizons = np.unique(np.append(ends[ends > due], due))
        return horizons, held[np.searchsorted(ends, horizons, side="right")]
