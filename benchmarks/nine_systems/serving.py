"""Latency of a deployed mixture of experts, simulated separately: the simulator of days has no requests."""

from __future__ import annotations

import numpy as np

from benchmarks.nine_systems.tables import Table
from research.lina.specs import EVEN, LINA, Kind, RoutingSpec

BATCHES = 20


def latency_table(seed: int) -> Table:
    """Return the batch times as multiples of the ideal time, with Lina's placement and with experts placed
    evenly."""
    routing = RoutingSpec(Kind.FITTED, seed, BATCHES).run()
    rows = []
    for label, way in (("all nine", LINA), ("without Lina", EVEN)):
        times = np.asarray(routing.series[way])
        rows.append((label, *(f"{np.percentile(times, percent):.2f}" for percent in (50, 95))))
    title = "Latency of a deployed mixture, in multiples of the latency with evenly spread tokens"
    return Table(title, ("", "median", "95th percentile"), rows)
