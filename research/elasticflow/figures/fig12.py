"""Figure 12: measurements on hardware, which no simulation reproduces, beside the simulator's assumptions."""

from __future__ import annotations

from collections.abc import Sequence

from research.elasticflow.specs import ElasticFlowSpec
from research.figure import Check, Context, FigureDefinition, FigureReport, Table
from scheduling.core.elasticflow.pause_budget import published_pause_seconds

PROFILING, SCALING = "12a", "12b"
GPUS_AFTER = {"1->2 GPU": 2, "2->1 GPU": 1, "8->16 GPU": 16, "16->8 GPU": 8, "migrate 8 GPU": 8}


def runs(full: bool) -> Sequence[ElasticFlowSpec]:
    """Return no run: nothing here is simulated."""
    return ()


def report(context: Context) -> FigureReport:
    """Report the published times, and the pause model of all simulations here."""
    published = context.published
    scaling = [
        (series, place, value)
        for series in published.series(SCALING)
        for place in GPUS_AFTER
        if (value := published.get(SCALING, series, place)) is not None
    ]
    checks = []
    if scaling:
        longest = max(value for _, _, value in scaling)
        above = all(value <= published_pause_seconds(GPUS_AFTER[place]) for _, place, value in scaling)
        checks = [
            Check("Every published pause is under 5 s", longest < 5.0, f"the longest is {longest:.2f} s"),
            Check(
                "The simulator charges at least as much as was measured", above,
                "2 s and 2 s times (1 + log2 of the GPUs), 7 s on clusters of 256 GPUs or more",
            ),
        ]  # fmt: skip
    return FigureReport(
        name=FIGURE.name,
        title=FIGURE.title,
        made="published measurements beside the pause model of the simulations; nothing here is run",
        notes=(
            (
                "Not reproducible in simulation: the figure shows how long profiling and scaling took on the "
                "authors' servers. How long they take on one's own is measured by the live platform, which "
                "plans with what it measured."
            ),
        )
        if scaling
        else (
            (
                "Not reproducible in simulation, and the published values are in paper_figures.csv, which is "
                "not in the traces folder."
            ),
        ),
        tables=_tables(context, scaling),
        checks=checks,
    )


def _tables(context: Context, scaling: Sequence[tuple[str, str, float]]) -> list[Table]:
    published = context.published
    profiled = [
        (series, value)
        for series in published.series(PROFILING)
        if (value := published.get(PROFILING, series, "profiling")) is not None
    ]
    if not scaling:
        return []
    return [
        Table(
            "Figure 12(b): pauses",
            "Seconds from suspending a job to its first iteration on the new GPUs. The model is the one of "
            "the published simulator, which charges more than was measured.",
            ("Model", "Change", "Published", "Charged here"),
            tuple(
                (series, place, f"{value:.2f} s", f"{published_pause_seconds(GPUS_AFTER[place]):.0f} s")
                for series, place, value in scaling
            ),
        ),
        Table(
            "Figure 12(a): profiling",
            "Seconds to measure a model at all batch sizes and GPU counts. Simulations start from the "
            "published table and profile nothing.",
            ("Model", "Published"),
            tuple((series, f"{value:.0f} s") for series, value in profiled),
        ),
    ]


FIGURE = FigureDefinition("fig12", "Figure 12: profiling and scaling overheads", True, runs, report)
