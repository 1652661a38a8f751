"""Figure 9: what admission control and elastic scaling each add to EDF, on synthetic jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from research.elasticflow.comparing import compared, contenders, specs_of
from research.elasticflow.drawings import bars
from research.elasticflow.explaining import explained
from research.elasticflow.generator import NAME
from research.elasticflow.rows import PolicyRow, Variant, find
from research.elasticflow.specs import ElasticFlowSpec
from research.figure import Check, Context, FigureDefinition, FigureReport

SERIES = ("EDF", "EDF+AdmissionControl", "EDF+ElasticScaling", "ElasticFlow")
WHO = contenders(SERIES)
SERVERS = (8, 16, 32)
FURTHER_DRAWS = (1, 2)
POINTS = 0.07
"""EDF with elastic scaling must be this close to ElasticFlow on the largest cluster."""

LADDERS = {
    "as published": ("edf_artifact", "edf_admission_artifact", "edf_elastic", "elasticflow"),
    "as the text": ("edf", "edf_admission", "edf_elastic", "elasticflow"),
}


def base(servers: int) -> ElasticFlowSpec:
    """Return 1,000 jobs, one in 1,500 s, on ``servers`` servers of eight GPUs."""
    return ElasticFlowSpec("", f"{NAME}:jobs=1000", servers, 8, 240.0)


def draws(full: bool) -> tuple[int, ...]:
    """Return further draws of deadlines, for the spread: the published generator draws them without a
    seed."""
    return FURTHER_DRAWS if full else ()


def runs(full: bool) -> Sequence[ElasticFlowSpec]:
    """Return a run of every policy on every cluster, in the full version for three draws of deadlines."""
    return [
        replace(spec, deadline_draw=draw)
        for servers in SERVERS
        for draw in (0, *draws(full))
        for spec in specs_of(base(servers), WHO)
    ]


def place(servers: int) -> str:
    """Return the place on the horizontal axis."""
    return f"{servers * 8} GPUs"


def report(context: Context) -> FigureReport:
    """Report bars by cluster, and the checks on the figure's shape."""
    rows = [
        row
        for servers in SERVERS
        for row in compared(context, "9", place(servers), base(servers), WHO, draws=draws(context.full))
    ]
    rows = explained(rows, context)
    return FigureReport(
        name=FIGURE.name,
        title=FIGURE.title,
        made="the published generator's 1,000 jobs, seed 0, deadlines drawn by us, on 8, 16 and 32 x 8 A100, "
        "slot 240 s",
        rows=rows,
        drawings=[
            bars("fig9", "On time, 1,000 synthetic jobs", [row for row in rows if row.policy != "punctual"])
        ],
        checks=_checks(rows),
    )


def _checks(rows: Sequence[PolicyRow]) -> list[Check]:
    checks = []
    for name, ladder in LADDERS.items():
        for servers in SERVERS[:2]:
            values = [_value(rows, servers, policy) for policy in ladder]
            text = " < ".join(
                f"{policy} {_text(value)}" for policy, value in zip(ladder, values, strict=True)
            )
            known = [value for value in values if value is not None]
            rising = all(low < high for low, high in zip(known, known[1:], strict=False))
            checks.append(
                Check(f"{place(servers)}, {name}: each part adds", rising if len(known) == 4 else None, text)
            )
    scaling, flow = _value(rows, 32, "edf_elastic"), _value(rows, 32, "elasticflow")
    checks.append(
        Check(
            f"256 GPUs: EDF with elastic scaling within {POINTS * 100:.0f} points of ElasticFlow",
            None if scaling is None or flow is None else abs(flow - scaling) <= POINTS + 1e-9,
            f"{_text(scaling)} and {_text(flow)}",
        )
    )
    return checks


def _value(rows: Sequence[PolicyRow], servers: int, policy: str) -> float | None:
    variant = Variant.ONE_BY_ONE if policy == "elasticflow" else None
    row = find(rows, place(servers), policy, variant)
    return row.ours if row is not None else None


def _text(value: float | None) -> str:
    return "not run" if value is None else f"{value:.3f}"


FIGURE = FigureDefinition("fig9", "Figure 9: sources of the improvement", False, runs, report)
