"""Promises admitted with a failure reserve, with and without recovery points in memory.

The paper has no promises: this shows the value of its recovery for this platform's.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from research.figure import Check, Context, FigureDefinition, FigureReport, Table
from research.gemini.specs import PromiseSpec
from research.store import RunResult

NAME = "promises"
SHORT_SEEDS, FULL_SEEDS = 1, 5
#: Reserve, whether recovery is from memory, replicas.
CASES = ((0, False, 2), (1, False, 2), (1, True, 2), (2, False, 2), (2, True, 2), (2, True, 3))


def runs(full: bool) -> Sequence[PromiseSpec]:
    """Return a run of each case with each draw of lost servers."""
    seeds = range(FULL_SEEDS if full else SHORT_SEEDS)
    return [PromiseSpec(*case, seed) for case in CASES for seed in seeds]


def report(context: Context) -> FigureReport:
    """Report promises admitted and kept, by reserve and tier."""
    found = {
        case: [
            result
            for spec in runs(context.full)
            if (spec.reserve, spec.in_memory, spec.replicas) == case
            and (result := context.get(spec)) is not None
        ]
        for case in CASES
    }
    return FigureReport(
        name=FIGURE.name,
        title=FIGURE.title,
        made="simulated with policy elasticflow on 8 x 8 GPUs; as many servers are lost as are in reserve",
        notes=(
            (
                "A promise keeps slack for as many failures as there are servers in reserve: until the "
                "server is given up, other GPUs, the start, and the work lost. With points in memory that "
                "work is two iterations; as many failures as replicas may together cost what durable storage "
                "lacks, ten minutes here. A job on fewer servers than replicas has copies on others."
            ),
        ),
        tables=(_table(found),),
        checks=(_none_late(found), _more(found, 1, 2), _more(found, 2, 3)),
    )


Found = dict[tuple[int, bool, int], list[RunResult]]


def _admitted(results: Sequence[RunResult]) -> float:
    return fmean(float(result.summary["admitted"]) for result in results)


def _table(found: Found) -> Table:
    rows = []
    for (reserve, in_memory, replicas), results in found.items():
        if not results:
            continue
        rows.append(
            (
                f"{reserve}, {f'memory, {replicas} replicas' if in_memory else 'durable storage'}",
                f"{results[0].facts['slack_seconds']:,.0f} s",
                f"{_admitted(results):,.0f} of {results[0].slo_jobs:,}",
                f"{sum(int(result.summary['admitted_late']) for result in results):,}",
                f"{sum(int(result.facts['failures']) for result in results):,}",
                f"{sum(int(result.facts['from_memory']) for result in results):,}",
                f"{sum(int(result.facts['from_durable']) for result in results):,}",
            )
        )
    return Table(
        "Promises by reserve",
        "Admitted: mean over the draws of lost servers. Jobs recovered: summed over them. A durable state is "
        "written every ten minutes.",
        ("Reserve", "Slack", "Admitted", "Promised late", "Servers lost", "From memory", "From durable"),
        tuple(rows),
    )


def _none_late(found: Found) -> Check:
    covered = [result for (reserve, _, _), results in found.items() if reserve for result in results]
    late = sum(int(result.summary["admitted_late"]) for result in covered)
    lost = sum(int(result.facts["failures"]) for result in covered)
    return Check(
        "No promised job is late within the reserve",
        late == 0 if covered else None,
        f"{late} late in {len(covered)} runs with {lost} servers lost" if covered else "not run",
    )


def _more(found: Found, reserve: int, replicas: int) -> Check:
    name = f"Reserve of {reserve}: points in memory let more promises be made"
    durable, memory = found[reserve, False, 2], found[reserve, True, replicas]
    if not durable or not memory:
        return Check(name, None, "not run")
    before, after = _admitted(durable), _admitted(memory)
    return Check(name, after > before, f"{after:,.0f} with {replicas} replicas, {before:,.0f} without")


TITLE = "Promises under failures, with and without points in memory"
FIGURE = FigureDefinition(NAME, TITLE, False, runs, report)
