"""Figure 8(b): ten production clusters and a Philly virtual cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from research.elasticflow.comparing import BASELINES, ELASTICFLOW, compared, contenders, specs_of
from research.elasticflow.drawings import agreement, bars
from research.elasticflow.explaining import explained
from research.elasticflow.rows import Means, PolicyRow, Variant, both_means, find
from research.elasticflow.specs import ElasticFlowSpec
from research.elasticflow.tables import LIKELY_CLUSTER, STATED_MEAN_OF_RATIOS
from research.figure import Check, Context, FigureDefinition, FigureReport, Table
from simulation.workloads.public_traces import PUBLIC_TRACES

CLUSTERS = tuple(f"cluster{number:02d}" for number in range(1, 11))
PHILLY = "philly"
FILES = {**{name: name for name in CLUSTERS}, PHILLY: "philly_103959"}
SHORT = ("cluster01", "cluster06", "cluster10", PHILLY)
"""A light, a heavy and a medium cluster, and Philly: minutes. The full version has all eleven."""

WHO = contenders((*BASELINES, ELASTICFLOW))


def base(place: str) -> ElasticFlowSpec:
    """Return the workload and cluster of one trace, as its authors simulate it."""
    known = PUBLIC_TRACES[FILES[place]]
    if known.servers is None or known.gpus_per_server is None or known.slot_seconds is None:
        raise ValueError(f"no published cluster is known for trace {known.name}")
    return ElasticFlowSpec("", known.name, known.servers, known.gpus_per_server, known.slot_seconds)


def places(full: bool) -> tuple[str, ...]:
    """Return the traces of the short or the full version."""
    return (*CLUSTERS, PHILLY) if full else SHORT


def runs(full: bool) -> Sequence[ElasticFlowSpec]:
    """Return a run of every policy on every trace, and another where the stated cluster is implausible."""
    specs = [spec for place in places(full) for spec in specs_of(base(place), WHO)]
    for (_, place), (servers, gpus) in LIKELY_CLUSTER.items():
        other = replace(base(place), servers=servers, gpus_per_server=gpus)
        specs += specs_of(other, [one for one in WHO if one.variant is not Variant.AS_DESCRIBED])
    return specs


def report(context: Context) -> FigureReport:
    """Report all cells, and both means of ElasticFlow's advantage."""
    shown = places(context.full)
    rows = [row for place in shown for row in compared(context, "8b", place, base(place), WHO)]
    rows = explained(rows, context)
    flow = [row for row in rows if row.series == ELASTICFLOW]
    averages = means(context, rows, shown)
    return FigureReport(
        name=FIGURE.name,
        title=FIGURE.title,
        made="traces as published, clusters of 256, 512 or 1,024 A100 by trace, slot 60 s, pauses measured",
        notes=(
            ["The short version: " + ", ".join(shown) + ". The full version runs all eleven traces."]
            if not context.full
            else []
        ),
        rows=rows,
        tables=[averages],
        drawings=[
            bars("fig8b-flow", "ElasticFlow on each trace", flow),
            agreement("fig8b-all", "Every bar, published against ours", rows),
        ],
        checks=[
            Check(
                "Both means of the advantage are given, over the same traces on both sides",
                all(row["ours"]["traces"] for row in averages.values) if averages.values else None,
                "see the table of means",
            )
        ],
    )


def means(context: Context, rows: Sequence[PolicyRow], shown: Sequence[str]) -> Table:
    """Return both means for every baseline: published and ours over the traces run, and the paper's over
    ten."""
    values: list[dict[str, Any]] = []
    for series in BASELINES:
        policy = next(one.policy for one in WHO if one.series == series)
        run = [(_flow(rows, place), find(rows, place, policy)) for place in shown]
        done = [
            place
            for place, (flow, other) in zip(shown, run, strict=True)
            if flow is not None and other is not None and None not in (flow.ours, other.ours)
        ]
        values.append(
            {
                "series": series,
                "policy": policy,
                "stated": STATED_MEAN_OF_RATIOS[series],
                "published_ten": _json(_published(context, series, CLUSTERS)),
                "published": _json(_published(context, series, done)),
                "ours": _json(both_means((f.ours if f else None, o.ours if o else None) for f, o in run)),
            }
        )
    return Table(
        title="ElasticFlow's advantage, both means",
        note=(
            "The paper's average is the mean of per-trace ratios over clusters 1 to 10; it is dominated by "
            "traces where the baseline meets next to nothing (EDF on cluster04). The ratio of means is not. "
            "Published and ours are over the traces run."
        ),
        header=("Baseline", "Stated", "Published, 10 traces", "Published", "Ours",
        "Published, ratio of means",
                "Ours, ratio of means", "Traces"),
        rows=tuple(
            (
                value["series"], f"{value['stated']:.2f}", *(_two(value[name]["mean_of_ratios"]) for name in
                ("published_ten", "published", "ours")), _two(value["published"]["ratio_of_means"]),
                _two(value["ours"]["ratio_of_means"]), str(value["ours"]["traces"]),
            )
            for value in values
        ),
        values=tuple(values),
    )  # fmt: skip


def _flow(rows: Sequence[PolicyRow], place: str) -> PolicyRow | None:
    return find(rows, place, "elasticflow", Variant.ONE_BY_ONE)


def _published(context: Context, series: str, over: Sequence[str]) -> Means:
    get = context.published.get
    return both_means((get("8b", ELASTICFLOW, place), get("8b", series, place)) for place in over)


def _json(means: Means) -> dict[str, Any]:
    return {
        "mean_of_ratios": means.mean_of_ratios,
        "ratio_of_means": means.ratio_of_means,
        "traces": means.traces,
    }


def _two(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


FIGURE = FigureDefinition("fig8b", "Figure 8(b): eleven production traces", True, runs, report)
