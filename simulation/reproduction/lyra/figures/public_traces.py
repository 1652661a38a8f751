"""The orders of Table 3.5 on jobs of public traces (spec 4.3): other jobs than the published ones, so orders count, not levels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simulation.reproduction.lyra.schemes import SCHEMES, baseline_of, size_of
from simulation.reproduction.lyra.sweeps import Point, sweep

LOAD = 0.7
TRACES = ("philly_all", "cluster04", "cluster08")
NAMES = ("basic", "ideal", "loaning", "loaning_scf", "loaning_random", "scaling", "afs", "gandiva", "sjf")
OTHER_DEMAND = "helios_vcvlY"
LENDING = ("basic", "loaning")


def _points(full: bool) -> Sequence[Point]:
    points = []
    for trace in TRACES:
        size = replace(size_of(full), trace=f"{trace}@{LOAD:g}")
        points += [Point(SCHEMES[name].label, trace, (SCHEMES[name].spec(size),)) for name in NAMES]
        for name in LENDING:
            usual = SCHEMES[name].spec(size)
            label = f"{SCHEMES[name].label}, demand of a Helios cluster"
            points.append(
                Point(label, trace, (replace(usual, usage=OTHER_DEMAND),), against=(baseline_of(usual),))
            )
    return points


FIGURE = sweep(
    "traces", "Jobs of public traces: Philly and ITP", "trace", _points, needs_traces=True,
    notes=(
        (f"The first jobs of a minute and more that fit the cluster, submitted so that they ask for {LOAD:.0%} of its GPUs over fifteen days."
        " Elastic and fungible jobs are tagged by seed. philly_all holds jobs of ten minutes and more alone. One seed."),
        ("No demand for inference goes with these traces. Its place is taken by the synthetic daily curve, and in the rows that say so by the GPUs in"
        f" use in a training cluster of Helios ({OTHER_DEMAND}), stretched to the published range: both are stand-ins."),
    ),
)  # fmt: skip
