"""What should hold over all runs at once, and the counts that a reader looks for first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from scheduling.core.question.snapshot import AdmissionRule
from simulation.reproduction.comparing import BASELINES, Context
from simulation.reproduction.figures.base import Check, FigureReport
from simulation.reproduction.rows import Row, Variant
from simulation.reproduction.runs import RunSpec
from simulation.reproduction.store import RunResult

PUBLISHED_RULES = (Variant.AS_PUBLISHED, Variant.TOGETHER, Variant.ONLY)
"""Variants that follow the code behind the published bars, as far as that is known; the others differ on
purpose."""


def overall_checks(context: Context, reports: Sequence[FigureReport]) -> list[Check]:
    """`punctual` against every other policy, promises kept, and that the report is complete."""
    return [_best_everywhere(context), _promises_kept(context), _complete(context, reports)]


def _best_everywhere(context: Context) -> Check:
    name = (
        "punctual has at least as many jobs on time as every other policy, on every workload and cluster run"
    )
    by_place: dict[RunSpec, dict[str, int]] = {}
    for spec, result in context.results.by_spec.items():
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


def _place(spec: RunSpec) -> RunSpec:
    """The run without its policy and admission rule: all of one place have the same jobs and cluster."""
    return replace(spec, policy="", admission=AdmissionRule.PER_JOB)


def _promises_kept(context: Context) -> Check:
    name = "elasticflow and punctual: no admitted job is late in any run"
    runs = [
        (spec, result)
        for spec, result in context.results.by_spec.items()
        if spec.policy in ("elasticflow", "punctual")
    ]
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
    rows = [row for report in reports for row in report.rows if row.result is not None]
    baselines = [row for row in rows if row.series in BASELINES and row.ours]
    lacking = [row for row in baselines if row.ratio_published is not None and row.ratio_ours is None]
    if not baselines or (lacking and context.results.failed):
        return Check(name, None, "some runs are missing" if baselines else "not run")
    return Check(name, not lacking, f"{len(baselines)} baseline values, {len(lacking)} without a ratio")


def counts(reports: Sequence[FigureReport]) -> dict[str, int]:
    """How many values were compared, how many lie beyond their band, and how many of these nothing explains.

    ``..._by_published_rules``: the same of variants that follow the published code.
    """
    rows: list[Row] = [row for report in reports for row in report.rows]
    compared = [row for row in rows if row.difference is not None]
    beyond = [row for row in compared if row.beyond_band]
    by_code = [row for row in compared if row.variant in PUBLISHED_RULES]
    return {
        "compared": len(compared),
        "within_band": len(compared) - len(beyond),
        "compared_by_published_rules": len(by_code),
        "within_band_by_published_rules": sum(not row.beyond_band for row in by_code),
        "beyond_band": len(beyond),
        "unexplained": sum(not row.explanations for row in beyond),
        "not_run": sum(row.ours is None for row in rows),
    }


def possible(result: RunResult) -> str:
    """The bound that no policy can pass, in words."""
    alone = int(result.facts["slo_jobs_possible_alone"])
    return f"{alone:,} of {result.slo_jobs:,} jobs could be on time with the empty cluster to themselves"
