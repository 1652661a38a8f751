"""The distance from the upper bound, at which compression takes no time (Section 4.6.3)."""

from __future__ import annotations

from collections.abc import Sequence

from research.espresso import explaining, model
from research.espresso.results import ESPRESSO, LEAST, UPPER_BOUND
from research.espresso.specs import SelectionSpec
from research.figure import Check, Context, FigureDefinition, FigureReport, Table
from research.model_rows import row
from research.store import RunResult

NAME = "bound"
SERIES = "Distance from the upper bound"
MOST = {model.NVLINK: 0.12, model.PCIE: 0.20}
PUBLISHED = ("GPT2", "UGATIT", "BERT-base")


def runs(full: bool) -> Sequence[SelectionSpec]:
    """Return a run of every workload on 64 GPUs."""
    return [SelectionSpec(name) for name in model.WORKLOADS]


def distance(result: RunResult, bound: str = UPPER_BOUND) -> float:
    """Return by how much throughput is below that of the bound."""
    return 1.0 - float(result.summary[bound] / result.summary[ESPRESSO])


def report(context: Context) -> FigureReport:
    """Report distances, and the bound by which requests are declined."""
    rows, table, checks = [], [], []
    for name, workload in model.WORKLOADS.items():
        spec = SelectionSpec(name)
        result = context.get(spec)
        most = MOST[workload.platform]
        title = f"{name}: at most {most:.0%} below the upper bound"
        if result is None:
            checks.append(Check(title, None, "not run"))
            continue
        found = distance(result)
        checks.append(Check(title, 0.0 <= found <= most, f"{found:.1%}"))
        least = distance(result, LEAST)
        table.append((name, workload.platform, f"{found:.1%}", f"{least:.1%}"))
        if name in PUBLISHED:
            why = (explaining.several_passes(f"{found:.1%}"),)
            rows.append(row(context, NAME, SERIES, name, found, spec.described(), shares=True, why=why))
    return FigureReport(
        name=FIGURE.name,
        title=FIGURE.title,
        made="selections of communication/espresso under costs in which codecs take no time",
        rows=rows,
        tables=(
            Table(
                "By how much throughput is below a bound, 64 GPUs",
                "The upper bound lets codecs take no time and chooses again. What is refused at once lies "
                "beyond the second one, which no strategy passes: computing, and bytes over bandwidths "
                "without latencies.",
                ("Model", "Platform", "Upper bound", "Proved bound"),
                tuple(table),
            ),
        ),
        checks=checks,
    )


FIGURE = FigureDefinition(NAME, "Distance from the upper bound", False, runs, report)
