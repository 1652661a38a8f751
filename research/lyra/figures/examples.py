"""Tables 3.1 to 3.4, Figures 3.5 and 3.6: worked examples, computed by the scheduler's own functions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from research.figure import Check, Context, FigureDefinition, FigureReport, Table
from research.lyra.specs import LyraSpec
from scheduling.core.lyra.fleet import NO_ROLE, Fleet, Speeds, WorkerMap
from scheduling.core.lyra.knapsack import NO_ITEM, ItemGroups, choose_items
from scheduling.core.lyra.reclaiming.choosing import ReclaimQuestion, choose_servers
from scheduling.core.lyra.reclaiming.methods import ReclaimMethod

LAYOUT = {"a": {1: 8, 2: 8}, "b": {3: 8}, "c": {4: 8, 5: 2}, "d": {5: 2, 6: 8}}
"""Figure 3.5: GPUs of each job on each server of eight, as far as the text gives them."""
FEWEST = {1: 1, 2: 1, 3: 2, 4: 3, 5: 3, 6: 4}
VALUES = {0: 0.0, 1: 20.0, 2: 50.0, 3: 70.0, 4: 80.0, 5: 86.0, 6: 90.0}
"""Figure 3.6: the best total for each number of GPUs."""


def runs(full: bool) -> Sequence[LyraSpec]:
    """Return no run: nothing here is simulated."""
    return ()


def report(context: Context) -> FigureReport:
    """Report the examples beside the paper's values."""
    reclaims = [
        (count, _preempted(count, ReclaimMethod.LYRA), _preempted(count, ReclaimMethod.OPTIMAL))
        for count in FEWEST
    ]
    totals = {gpus: _best_total(gpus) for gpus in VALUES}
    return FigureReport(
        name=FIGURE.name,
        title=FIGURE.title,
        made="computed by the functions that the scheduler calls; Tables 3.2 to 3.4 are simulated by the "
             "tests",
        tables=(
            Table(
                "Figure 3.5: servers asked back",
                "Jobs preempted by Lyra's choice, by the fewest possible, and as worked out by hand.",
                ("Servers", "Lyra", "Optimum", "By hand"),
                tuple((str(count), str(mine), str(best), str(FEWEST[count])) for count, mine,
                best in reclaims),
            ),
            Table(
                "Figure 3.6: the knapsack",
                "Greatest total of seconds saved, by GPUs.",
                ("GPUs", "Computed", "Published"),
                tuple((str(gpus), f"{total:g}", f"{VALUES[gpus]:g}") for gpus, total in totals.items()),
            ),
        ),
        checks=(
            Check(
                "Figure 3.5: two servers cost one job, as published", reclaims[1][1] == 1,
                f"{reclaims[1][1]} preempted",
            ),
            Check(
                "Figure 3.5: the optimum is the one worked out by hand",
                all(best == FEWEST[count] for count, _, best in reclaims),
                f"{[best for _, _, best in reclaims]}",
            ),
            Check("Figure 3.6: every total is the published one", totals == VALUES,
            f"{list(totals.values())}"),
        ),
    )  # fmt: skip


def _preempted(servers: int, method: ReclaimMethod) -> int:
    entries = [
        (job, server - 1, gpus)
        for job, places in enumerate(LAYOUT.values())
        for server, gpus in places.items()
    ]
    offsets = np.concatenate(([0], np.cumsum([len(places) for places in LAYOUT.values()]))).astype(np.int64)
    jobs = len(LAYOUT)
    base = np.array([gpus for _, _, gpus in entries])
    workers = WorkerMap(offsets, np.array([server for _, server, _ in entries]), base, np.zeros_like(base))
    question = ReclaimQuestion(
        fleet=Fleet(np.full(6, 8), np.ones(6, dtype=np.bool_), np.full(6, NO_ROLE)),
        workers=workers,
        gpus_per_worker=np.ones(jobs, dtype=np.int64),
        remaining_iterations=np.ones(jobs),
        lent=Speeds(
            np.arange(jobs + 1), np.array([sum(places.values()) for places in LAYOUT.values()]), np.ones(jobs)
        ),
        servers=servers,
    )
    return int(choose_servers(question, method).preempted.size)


def _best_total(gpus: int) -> float:
    """Return the best total of the example: job A needs two GPUs a worker and saves 50 s with one more; job
    B needs one and saves 20, 30, 36 and 40 s."""
    groups = ItemGroups(
        np.array([0, 1, 5]),
        np.array([2, 1, 2, 3, 4]),
        np.array([50.0, 20.0, 30.0, 36.0, 40.0]),
        np.full(2, NO_ITEM),
    )
    chosen = choose_items(groups, gpus).chosen
    return float(sum(groups.value[item] for item in chosen.tolist() if item != NO_ITEM))


FIGURE = FigureDefinition(
    "examples", "Tables 3.1 to 3.4, Figures 3.5 and 3.6: worked examples", False, runs, report
)
