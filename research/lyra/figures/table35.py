"""Tables 3.5 and 3.8 and Figure 3.7: every scheme against the baseline, and checks between schemes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from research.figure import Context, FigureDefinition, FigureReport, Table
from research.lyra.checks import BANDED, bands, must_hold
from research.lyra.measuring import (
    JCT,
    WAITING,
    column,
    mean_over_seeds,
    mean_ratio,
    pairs_of,
    percentile_ratio,
)
from research.lyra.published import BASELINE as PUBLISHED_BASELINE
from research.lyra.published import NOT_TO_CHASE, TABLE_35, TABLE_38, Reduction
from research.lyra.schemes import BASELINE, SCHEMES, SEEDS, Scheme, banded_size, size_of, specs_of
from research.lyra.specs import LyraSpec
from simulation.reports.style import PALETTE, Drawing, base_figure

PERCENTILES = (50, 75, 95, 99)
DRAWN = ("basic", "ideal")


def runs(full: bool) -> Sequence[LyraSpec]:
    """Return runs of every scheme, three seeds."""
    banded = specs_of(BANDED, full, banded_size(full))
    return list(dict.fromkeys((*specs_of(tuple(SCHEMES), full), *banded)))


def report(context: Context) -> FigureReport:
    """Report published reductions beside ours."""
    return FigureReport(
        name=FIGURE.name,
        title=FIGURE.title,
        made="simulated; ratios of means over the jobs of three seeds, intervals of 95 % by bootstrap over "
        "quarters of days",
        notes=(
            (
                "A ratio is the baseline's value over the scheme's: more than 1 is better than the baseline. "
                "Queuing time is all time without GPUs, after preemptions too."
            ),
            (
                "Reductions of queuing time are far above the published ones wherever shortest jobs go "
                "first: behind a strict queue that waits for hours, nearly nobody waits when short jobs pass "
                "long ones. Published reductions of 1.1 to 2.7 would need a queue that hardly gets shorter "
                "when its head no longer holds it up."
            ),
            f"Not to chase: {NOT_TO_CHASE['baseline_tail']}",
            f"Not to chase: {NOT_TO_CHASE['jct_of_loaning']} {NOT_TO_CHASE['elastic_ceiling']}",
            f"Not to chase: {NOT_TO_CHASE['overall_usage']} {NOT_TO_CHASE['usage_of_the_same_work']}",
        ),
        tables=(_baseline(context), _reductions(context), _usage(context), _percentiles(context)),
        drawings=(_usage_by_hour(context), _bars(context)),
        checks=(*must_hold(context), *bands(context)),
    )


def _specs(context: Context, scheme: Scheme) -> list[LyraSpec]:
    return [scheme.spec(size_of(context.full), seed) for seed in SEEDS]


def _baseline(context: Context) -> Table:
    specs = [BASELINE.spec(banded_size(context.full), seed) for seed in SEEDS]
    asked = {
        "queuing time, mean": lambda one: float(column(one, WAITING).mean()),
        **{f"queuing time, {share} %": _at(WAITING, share) for share in PERCENTILES},
        "JCT, mean": lambda one: float(column(one, JCT).mean()),
        **{f"JCT, {share} %": _at(JCT, share) for share in PERCENTILES},
    }
    waits, takes = TABLE_38["baseline"]
    published = [PUBLISHED_BASELINE.queuing_mean, *waits, PUBLISHED_BASELINE.jct_mean, *takes]
    rows = []
    for (name, value), told in zip(asked.items(), published, strict=True):
        each = [value(result) for spec in specs if (result := context.get(spec)) is not None]
        ours = f"{np.mean(each):,.0f} s" if each else "–"
        rows.append((name, f"{told:,.0f} s", ours, ", ".join(f"{one:,.0f}" for one in each)))
    usage = mean_over_seeds(context.results, specs, lambda one: float(one.facts["training_usage"]))
    rows.append(("GPUs of the training cluster in use", "0.72", "–" if usage is None else f"{usage:.3f}", ""))
    return Table(
        "The baseline",
        "What the synthetic trace was made to meet, as far as it can be met. Bands are asked here. The "
        "other tables of the short version are of an eighth of the cluster that is asked for 1.4 times as "
        "much, so that the order of schemes can be told; levels say nothing there.",
        ("Baseline", "Published", "Ours, mean of seeds", "By seed"),
        tuple(rows),
    )


def _at(name: str, share: int):  # type: ignore[no-untyped-def]
    return lambda one: float(np.percentile(column(one, name), share))


def _reductions(context: Context) -> Table:
    rows, values = [], []
    base = _specs(context, BASELINE)
    for scheme in SCHEMES.values():
        pairs = pairs_of(context.results, base, _specs(context, scheme))
        told = TABLE_35.get(scheme.name)
        cells = []
        for number, (name, share) in enumerate(
            [(WAITING, None), (WAITING, 50), (WAITING, 95), (JCT, None), (JCT, 50), (JCT, 95)]
        ):
            ours = mean_ratio(pairs, name) if share is None else percentile_ratio(pairs, name, share)
            shown = "–" if ours is None else f"{ours:.2f}" if isinstance(ours, float) else str(ours)
            cells.append(f"{'–' if told is None else f'{told[number]:.2f}'} / {shown}")
        rows.append((scheme.label, *cells))
        values.append(dict(zip(("scheme", *Reduction._fields[:6]), rows[-1], strict=True)))
    return Table(
        "Table 3.5: reductions",
        "Published / ours, with intervals for means. The last three rows are ours: the order alone, the "
        "baseline with backfilling (A9), and reclaims improved.",
        ("Scheme", "Queuing, mean", "50 %", "95 %", "JCT, mean", "50 %", "95 %"),
        tuple(rows),
        tuple(values),
    )


def _usage(context: Context) -> Table:
    rows = []
    for scheme in (BASELINE, *SCHEMES.values()):
        specs = _specs(context, scheme)
        told = PUBLISHED_BASELINE if scheme is BASELINE else TABLE_35.get(scheme.name)
        measured = [
            mean_over_seeds(context.results, specs, lambda one: float(one.facts["training_usage"])),
            mean_over_seeds(context.results, specs, lambda one: float(one.facts["overall_usage"])),
            mean_over_seeds(context.results, specs, lambda one: one.summary["on_loan_gpu_usage"]),
            mean_over_seeds(context.results, specs, lambda one: one.summary["preemption_ratio"]),
        ]
        published = (None,) * 4 if told is None else (told[6], told[7], None, told[8])
        cells = [f"{_number(one)} / {_number(ours)}" for one, ours in zip(published, measured, strict=True)]
        other = (
            mean_over_seeds(context.results, specs, lambda one: one.summary["reclaim_flexible_share"]),
            mean_over_seeds(context.results, specs, lambda one: float(one.summary["rescales"])),
            mean_over_seeds(context.results, specs, lambda one: float(one.summary["shortfall_servers_max"])),
        )
        rows.append(
            (scheme.label, *cells, _number(other[0]), _number(other[1], ".0f"), _number(other[2], ".0f"))
        )
    return Table(
        "Table 3.5: usage and preemptions",
        "Published / ours. Training: owned and borrowed GPUs. Preemptions per job submitted. Reclaimed by "
        "shrinking: published are 0.535 in Basic and 0.835 in Ideal. Servers short: most that inference "
        "missed at the end of a period, with persistence as the forecaster.",
        (
            "Scheme", "Training", "Both clusters", "On loan", "Preemptions", "Reclaimed by shrinking",
            "Scaling operations", "Servers short",
        ),
        tuple(rows),
    )  # fmt: skip


def _percentiles(context: Context) -> Table:
    rows = []
    base = _specs(context, BASELINE)
    for name, (waits, takes) in TABLE_38.items():
        if name == "baseline" or name not in SCHEMES:
            continue
        pairs = pairs_of(context.results, base, _specs(context, SCHEMES[name]))
        cells = []
        for metric, told, top in (
            (WAITING, waits, TABLE_38["baseline"][0]),
            (JCT, takes, TABLE_38["baseline"][1]),
        ):
            for share, value, whole in zip(PERCENTILES, told, top, strict=True):
                cells.append(f"{whole / value:.2f} / {_number(percentile_ratio(pairs, metric, share))}")
        rows.append((SCHEMES[name].label, *cells))
    header = ("Scheme", *(f"{kind} {share} %" for kind in ("Queuing", "JCT") for share in PERCENTILES))
    return Table(
        "Table 3.8: percentiles",
        f"Published / ours, as ratios. {NOT_TO_CHASE['table_38_rows']}",
        header,
        tuple(rows),
    )


def _usage_by_hour(context: Context) -> Drawing:
    note = (
        "Share of the GPUs of both clusters in use, requests included, hour by hour; the first seed. Nothing "
        "of the published curve is public."
    )
    figure = base_figure(height=340)
    for number, scheme in enumerate((BASELINE, *(SCHEMES[name] for name in DRAWN))):
        result = context.get(scheme.spec(size_of(context.full)))
        if result is None:
            return Drawing(
                "lyra-usage", "Figure 3.7: overall usage", note, None, "Its runs are missing.", wide=True
            )
        values = result.series["usage_by_hour"]
        figure.add_trace(
            go.Scatter(x=list(range(len(values))), y=values, name=scheme.label, mode="lines",
                       line={"color": PALETTE[number], "width": 1.5},
                       hovertemplate="hour %{x}: %{y:.1%}<extra></extra>")
        )  # fmt: skip
    figure.update_xaxes(title_text="hours")
    figure.update_yaxes(title_text="share of GPUs", tickformat=".0%")
    return Drawing("lyra-usage", "Figure 3.7: overall usage", note, figure, wide=True)


def _bars(context: Context) -> Drawing:
    note = "The baseline's mean JCT over the scheme's: published grey, ours blue, with 95 % intervals."
    base = _specs(context, BASELINE)
    known = [
        (scheme, ratio)
        for scheme in SCHEMES.values()
        if (ratio := mean_ratio(pairs_of(context.results, base, _specs(context, scheme)), JCT)) is not None
    ]
    if not known:
        return Drawing("lyra-jct", "JCT against the baseline", note, None, "Its runs are missing.", wide=True)
    figure = base_figure(barmode="group", height=380, margin={"l": 60, "r": 16, "t": 12, "b": 130})
    labels = [scheme.label for scheme, _ in known]
    told = [TABLE_35[scheme.name].jct_mean if scheme.name in TABLE_35 else None for scheme, _ in known]
    figure.add_trace(go.Bar(x=labels, y=told, name="Published", marker={"color": "#8a94a3"}))
    figure.add_trace(
        go.Bar(
            x=labels, y=[ratio.value for _, ratio in known], name="Ours", marker={"color": PALETTE[0]},
            error_y={
                "type": "data", "symmetric": False,
                "array": [ratio.high - ratio.value for _, ratio in known],
                "arrayminus": [ratio.value - ratio.low for _, ratio in known],
            },
        )
    )  # fmt: skip
    figure.update_xaxes(tickangle=-35)
    figure.update_yaxes(title_text="baseline over scheme")
    return Drawing("lyra-jct", "JCT against the baseline", note, figure, wide=True)


def _number(value: float | None, form: str = ".2f") -> str:
    return "–" if value is None else f"{value:{form}}"


FIGURE = FigureDefinition(
    "table35", "Tables 3.5 and 3.8, Figure 3.7: every scheme against the baseline", False, runs, report,
    also_called=("table38", "fig37"),
)  # fmt: skip
