"""The orders of Table 3.5 on jobs of public traces: the jobs differ from the published ones, so
only orders are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from research.figure import Check
from research.lyra.schemes import SCHEMES, baseline_of, size_of
from research.lyra.sweeps import MeasuredPoint, SweepPoint, find, sweep

LOAD = 0.7
TRACES = ("philly_all", "cluster04", "cluster08")
NAMES = ("basic", "ideal", "loaning", "loaning_scf", "loaning_random", "scaling", "afs", "gandiva", "sjf")
OTHER_DEMAND = "helios_vcvlY"
LENDING = ("basic", "loaning")


def _points(full: bool) -> Sequence[SweepPoint]:
    points = []
    for trace in TRACES:
        size = replace(size_of(full), trace=f"{trace}@{LOAD:g}")
        points += [SweepPoint(SCHEMES[name].label, trace, (SCHEMES[name].spec(size),)) for name in NAMES]
        for name in LENDING:
            usual = SCHEMES[name].spec(size)
            label = f"{SCHEMES[name].label}, demand of a Helios cluster"
            points.append(
                SweepPoint(label, trace, (replace(usual, usage=OTHER_DEMAND),), against=(baseline_of(usual),))
            )
    return points


def _orders(rows: Sequence[MeasuredPoint]) -> Sequence[Check]:
    """Check the orders of Table 3.5 that must hold for synthetic jobs, on each trace; the first of
    each must be the better one."""
    checks = []
    for trace in TRACES:
        for kind, better, worse in (
            ("preemptions", "loaning", "loaning_scf"),
            ("preemptions", "loaning_scf", "loaning_random"),
            ("JCT", "scaling", "afs"),
            ("JCT", "scaling", "gandiva"),
            ("JCT", "ideal", "basic"),
        ):
            first, second = (find(rows, SCHEMES[name].label, trace) for name in (better, worse))
            values = [_value(one, kind) for one in (first, second)]
            name = f"{trace}: {kind}, {SCHEMES[better].label} better than {SCHEMES[worse].label}"
            if values[0] is None or values[1] is None:
                checks.append(Check(name, None, "not run"))
            else:
                lower = kind == "preemptions"
                met = values[0] < values[1] if lower else values[0] > values[1]
                told = "per job" if lower else "reductions"
                checks.append(Check(name, met, f"{told}: {values[0]:.4g} and {values[1]:.4g}"))
        against = find(rows, SCHEMES["basic"].label, trace)
        for metric, ratio in (
            ("queuing time", None if against is None else against.queuing),
            ("JCT", None if against is None else against.jct),
        ):
            name = f"{trace}: {metric}, Lyra, Basic better than the baseline"
            checks.append(Check(name, None if ratio is None else ratio.above_one, str(ratio or "not run")))
    return checks


def _value(row: MeasuredPoint | None, kind: str) -> float | None:
    if row is None:
        return None
    return row.preemptions if kind == "preemptions" else None if row.jct is None else row.jct.value


FIGURE = sweep(
    "traces", "Jobs of public traces: Philly and ITP", "trace", _points, needs_traces=True, checks=_orders,
    notes=(
        ("The first jobs of a minute and more that fit the cluster, submitted so that they ask for "
         f"{LOAD:.0%} of its GPUs over fifteen days. Elastic and fungible jobs are tagged by seed. "
         "philly_all holds jobs of ten minutes and more alone. One seed."),
        ("No demand for inference goes with these traces. Its place is taken by the synthetic daily "
         "curve, and in the rows that say so by the GPUs in use in a training cluster of Helios "
         f"({OTHER_DEMAND}), stretched to the published range: both are stand-ins."),
    ),
)  # fmt: skip
