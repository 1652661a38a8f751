"""The authors' own simulator beside this one, on the same files: the fairest comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from research.elasticflow.comparing import compared, contenders, specs_of
from research.elasticflow.drawings import agreement
from research.elasticflow.figures import fig6b, fig8a, fig8b
from research.elasticflow.rows import PolicyRow, Variant, find
from research.elasticflow.specs import ElasticFlowSpec
from research.elasticflow.tables import AUTHORS_STOPPED_AFTER_SECONDS, AUTHORS_WALL_SECONDS
from research.figure import Check, Context, FigureDefinition, FigureReport, Table, at_least

BAND = 0.05
WHO = contenders(
    ("EDF", "EDF+AdmissionControl", "Gandiva", "Tiresias", "Themis", "EDF+ElasticScaling", "ElasticFlow")
)
PLACES: dict[tuple[str, str], ElasticFlowSpec] = {
    ("6b", fig6b.PLACE): fig6b.BASE,
    ("8a", fig8a.PLACE): fig8a.BASE,
    ("8b", "cluster10"): fig8b.base("cluster10"),
    ("8b", "cluster06"): fig8b.base("cluster06"),
    ("8b", "cluster01"): fig8b.base("cluster01"),
}
HELD_AGAINST = ("edf_artifact", "edf_admission_artifact", "gandiva_artifact", "tiresias", "themis")
AIMS = {
    "elasticflow": {"testbed_195job": 170, "t4_195job": 150, "cluster10": 252, "cluster06": 1990},
    "punctual": {"testbed_195job": 178, "t4_195job": 158, "cluster10": 257, "cluster06": 2030},
}


def runs(full: bool) -> Sequence[ElasticFlowSpec]:
    """Return a run of every policy of the table on its five traces."""
    return [spec for base in PLACES.values() for spec in specs_of(base, WHO)]


def report(context: Context) -> FigureReport:
    """Report shares on time and wall times, theirs beside ours."""
    rows = [
        row for (figure, place), base in PLACES.items() for row in compared(context, figure, place, base, WHO)
    ]
    held = [row for row in rows if row.policy in HELD_AGAINST and row.authors is not None]
    return FigureReport(
        name=FIGURE.name,
        title=FIGURE.title,
        made="five public traces on the clusters of Figures 6(b), 8(a) and 8(b), pauses measured",
        notes=(
            (
                "Values are shares of all jobs with a deadline that were on time; declined jobs count as "
                "misses. Theirs: pkusys/ElasticFlow 04a0109, unmodified, on two cores. Its wall times and "
                "ours are not of the same machine load."
            ),
        ),
        tables=[_shares(rows), _times(context)],
        drawings=[agreement("authors", "The authors' simulator against ours", held, authors=True)],
        checks=[*_aims(rows), *_bands(held)],
    )


def _shares(rows: Sequence[PolicyRow]) -> Table:
    kept = [row for row in rows if row.authors is not None or row.variant is Variant.OURS]
    values: list[dict[str, Any]] = [
        {
            "trace": row.spec.trace, "policy": row.policy, "variant": row.variant.value,
            "authors_simulator": row.authors,
            "ours": row.ours, "on_time": row.result.met if row.result else None,
            "slo_jobs": row.result.slo_jobs if row.result else None,
            "admitted_late": row.result.summary["admitted_late"] if row.result else None,
        }
        for row in kept
    ]  # fmt: skip
    return Table(
        "Shares on time",
        "Variants beside a policy's name say which rule it follows.",
        ("Trace", "Policy", "Variant", "Authors' simulator", "Ours", "Difference", "On time",
        "Admitted and late"),
        tuple(
            (
                row.spec.trace, row.policy, row.variant.value, _three(row.authors), _three(row.ours),
                _three(row.ours - row.authors,
                "+") if row.ours is not None and row.authors is not None else "–",
                f"{row.result.met:,} of {row.result.slo_jobs:,}" if row.result else "–",
                str(row.result.summary["admitted_late"]) if row.result else "–",
            )
            for row in kept
        ),
        tuple(values),
    )  # fmt: skip


def _times(context: Context) -> Table:
    lines: list[tuple[str, ...]] = []
    values: list[dict[str, Any]] = []
    for (figure, place), base in PLACES.items():
        flow = find(compared(context, figure, place, base, WHO), place, "elasticflow", Variant.ONE_BY_ONE)
        seconds = flow.result.summary["wall_seconds"] if flow is not None and flow.result else None
        theirs = AUTHORS_WALL_SECONDS.get(base.trace)
        stopped = AUTHORS_STOPPED_AFTER_SECONDS.get(base.trace)
        shown = f"{theirs:.0f} s" if theirs else f"stopped after {stopped:,.0f} s" if stopped else "–"
        times = f"{theirs / seconds:.0f}" if theirs and seconds else "–"
        lines.append((base.trace, shown, f"{seconds:.1f} s" if seconds is not None else "–", times))
        values.append({"trace": base.trace, "authors_wall_seconds": theirs, "wall_seconds": seconds})
    return Table(
        "Wall time of ElasticFlow's event loop",
        "One run, beside whatever else ran on this machine: an upper bound.",
        ("Trace", "Authors' simulator", "Ours", "Times as fast"),
        tuple(lines),
        tuple(values),
    )


def _aims(rows: Sequence[PolicyRow]) -> list[Check]:
    checks = []
    for policy, aims in AIMS.items():
        for trace, least in aims.items():
            row = next(
                (each for each in rows if each.policy == policy and each.spec.trace == trace
                 and each.variant in (Variant.ONE_BY_ONE, Variant.OURS)), None,
            )  # fmt: skip
            result = row.result if row is not None else None
            checks.append(
                at_least(f"{policy} on {trace}, jobs on time", result.met if result else None, least)
            )
            late = result.summary["admitted_late"] if result else None
            checks.append(
                Check(
                    f"{policy} on {trace}, admitted jobs late",
                    late == 0 if result else None,
                    f"{late}, none wanted",
                )
            )
    return checks


def _bands(held: Sequence[PolicyRow]) -> list[Check]:
    checks = []
    for policy in HELD_AGAINST:
        mine = [row for row in held if row.policy == policy and row.ours is not None]
        beyond = [row for row in mine if abs((row.ours or 0.0) - (row.authors or 0.0)) > BAND]
        text = ", ".join(f"{row.spec.trace} {_three(row.authors)} → {_three(row.ours)}" for row in mine)
        checks.append(
            Check(
                f"{policy} within {BAND} of the authors' simulator",
                not beyond if mine else None,
                text or "not run",
            )
        )
    return checks


def _three(value: float | None, sign: str = "") -> str:
    return "–" if value is None else f"{value:{sign}.3f}"


FIGURE = FigureDefinition("authors", "The authors' simulator beside this one", True, runs, report)
