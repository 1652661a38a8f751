"""Figures 6(b) and 7: the 195-job trace on 128 GPUs of the testbed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from research.elasticflow.comparing import BASELINES, ELASTICFLOW, compared, contenders, specs_of
from research.elasticflow.drawings import bars, histories
from research.elasticflow.explaining import explained
from research.elasticflow.rows import PolicyRow, Variant, find
from research.elasticflow.specs import ElasticFlowSpec
from research.figure import Check, Context, FigureDefinition, FigureReport, at_least, within
from research.rows import over
from research.store import RunResult
from simulation.engine.asked.pauses import Pauses

PLACE = "128 GPUs, 195 jobs"
BASE = ElasticFlowSpec("", "testbed_195job", 16, 8, 240.0)
WHO = contenders((*BASELINES, ELASTICFLOW))
WITHOUT_PAUSES = replace(BASE, policy="elasticflow", pauses=Pauses.NONE)
SHOWN_HOURS = 96.0
"""The jobs of the trace are submitted within 48 hours."""

DRAWN = ("elasticflow", "punctual", "edf_artifact", "tiresias", "themis", "chronus")


def runs(full: bool) -> Sequence[ElasticFlowSpec]:
    """Return a run of every policy, and of ElasticFlow without pauses."""
    return [*specs_of(BASE, WHO), WITHOUT_PAUSES]


def report(context: Context) -> FigureReport:
    """Report bars, allocation over time, and the checks of this trace."""
    rows = explained(compared(context, "6b", PLACE, BASE, WHO), context)
    results = {name: context.get(replace(BASE, policy=name)) for name in DRAWN}
    shown = {name: result for name, result in results.items() if result is not None}
    flow = shown.get("elasticflow")
    return FigureReport(
        name=FIGURE.name,
        title=FIGURE.title,
        made="trace testbed_195job on 16 x 8 A100, slot 240 s, pauses measured",
        notes=_notes(context, flow),
        rows=rows,
        drawings=[
            bars("fig6b", "Figure 6(b): on time, 195 jobs on 128 GPUs", rows),
            histories("fig7a", "Figure 7: GPUs in use", shown, "gpus_used", "GPUs", most_hours=SHOWN_HOURS),
            histories("fig7b", "Figure 7: jobs submitted, admitted and declined", _flow_only(flow),
                      ("submitted", "admitted", "declined"), "jobs, counted from the start",
                      most_hours=SHOWN_HOURS),
        ],
        checks=_checks(context, rows),
    )  # fmt: skip


def _flow_only(flow: RunResult | None) -> dict[str, RunResult]:
    return {"elasticflow": flow} if flow is not None else {}


def _notes(context: Context, flow: RunResult | None) -> list[str]:
    notes = []
    if flow is not None and flow.declined and flow.series:
        hours = np.array(flow.series["hours"])
        dropped = np.diff(np.array(flow.series["declined"]), prepend=0.0)
        by_hour = np.bincount(hours.astype(np.int64), weights=dropped)
        most = int(by_hour.argmax())
        notes.append(
            f"ElasticFlow drops {flow.declined} jobs here; most of them in one hour, {by_hour[most]:.0f}, in "
            f"hour {most} of the run (the paper's Figure 7 shows a burst of submissions around hour 13, "
            "where drops happen)."
        )
    free, paid = context.get(WITHOUT_PAUSES), context.get(replace(BASE, policy="elasticflow"))
    if free is not None and paid is not None:
        notes.append(
            f"Pauses: ElasticFlow has {paid.met} jobs on time with them and {free.met} without, so they "
            f"explain {abs(free.met - paid.met)} jobs of {paid.slo_jobs}."
        )
    return notes


def _checks(context: Context, rows: Sequence[PolicyRow]) -> list[Check]:
    edf = find(rows, PLACE, "edf_artifact")
    flow = find(rows, PLACE, "elasticflow", Variant.ONE_BY_ONE)
    free = context.get(WITHOUT_PAUSES)
    others = [row for row in rows if row.series in BASELINES and row.ours is not None]
    best = max(others, key=lambda row: row.ours or 0.0, default=None)
    advantage = over(flow.ours if flow else None, best.ours if best else None)
    return [
        within("EDF as published, jobs on time", met(edf), 17, 2),
        at_least("ElasticFlow one by one, jobs on time", met(flow), 170),
        Check(
            "No admitted job is late without pauses",
            None if free is None else free.summary["admitted_late"] == 0,
            "not run" if free is None else f"{free.summary['admitted_late']} of {free.summary['admitted']} "
                                           f"admitted",
        ),
        at_least(
            "ElasticFlow over the best other policy of the figure" + (f" ({best.policy})" if best else ""),
            advantage, 1.46, ".2f",
        ),
    ]  # fmt: skip


def met(row: PolicyRow | None) -> float | None:
    """Return the jobs on time of a row, None if it was not run."""
    return float(row.result.met) if row is not None and row.result is not None else None


FIGURE = FigureDefinition(
    "fig6b", "Figures 6(b) and 7: 195 jobs on 128 GPUs", True, runs, report, also_called=("fig7",)
)
