"""Checks over all runs of ElasticFlow's evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from research.elasticflow.comparing import BASELINES
from research.elasticflow.rows import PolicyRow
from research.elasticflow.specs import ElasticFlowSpec
from research.figure import Check, Context, FigureReport
from research.store import RunResult
from scheduling.core.question.snapshot import AdmissionRule


def overall_checks(context: Context, reports: Sequence[FigureReport]) -> list[Check]:
    """Check `punctual` against every other policy, that promises are kept, and completeness of the report."""
    return [_best_everywhere(context), _promises_kept(context), _complete(context, reports)]


def _runs(context: Context) -> Iterator[tuple[ElasticFlowSpec, RunResult]]:
    for spec, result in context.results.by_spec.items():
        if isinstance(spec, ElasticFlowSpec):
            yield spec, result


def _best_everywhere(context: Context) -> Check:
    name = (
        "punctual has at least as many jobs on time as every other policy, on every workload and cluster run"
    )
    by_place: dict[ElasticFlowSpec, dict[str, int]] = {}
    for spec, result in _runs(context):
        if not spec.hold_arrivals:
            at = by_place.setdefault(_place(spec), {})
            at[spec.policy] = max(at.get(spec.policy, 0), result.met)
    beaten = []
    compared = 0
    for place, met in by_place.items():
        if "punctual" in met and len(met) > 1:
            compared += 1
            best = max(met, key=lambda policy: (met[policy], policy == "punctual"))
            if met[best] > met["punctual"]:
                where = f"{place.trace} on {place.servers} x {place.gpus_per_server} GPUs, seed {place.seed}"
                where += f", draw {place.deadline_draw}" if place.deadline_draw else ""
                beaten.append(f"{where}: {best} {met[best]}, punctual {met['punctual']}")
    if not compared:
        return Check(name, None, "not run")
    return Check(name, not beaten, "; ".join(beaten) or f"{compared} workloads compared")


def _place(spec: ElasticFlowSpec) -> ElasticFlowSpec:
    """Return the run without policy and admission rule: runs of one place have equal jobs and cluster."""
    return replace(spec, policy="", admission=AdmissionRule.PER_JOB)


def _promises_kept(context: Context) -> Check:
    name = "elasticflow and punctual: no admitted job is late in any run"
    runs = [(spec, result) for spec, result in _runs(context) if spec.policy in ("elasticflow", "punctual")]
    broken = [
        f"{spec.policy} on {spec.trace}: {result.summary['admitted_late']}"
        for spec, result in runs
        if result.summary["admitted_late"]
    ]
    promised = sum(int(result.summary["admitted"]) for _, result in runs)
    text = "; ".join(broken) or f"{promised:,} admitted jobs in {len(runs)} runs, none late"
    return Check(name, not broken if runs else None, text)


def _complete(context: Context, reports: Sequence[FigureReport]) -> Check:
    name = "Every baseline has its ratio to ElasticFlow beside the published one, dropped and late jobs apart"
    baselines = [
        row
        for report in reports
        for row in report.rows
        if isinstance(row, PolicyRow) and row.result is not None and row.series in BASELINES and row.ours
    ]
    lacking = [row for row in baselines if row.ratio_published is not None and row.ratio_ours is None]
    if not baselines or (lacking and context.results.failed):
        return Check(name, None, "some runs are missing" if baselines else "not run")
    return Check(name, not lacking, f"{len(baselines)} baseline values, {len(lacking)} without a ratio")
