"""Figure 8(a): the 195-job trace with models measured on T4 GPUs, all seven policies."""

from __future__ import annotations

from collections.abc import Sequence

from research.elasticflow.comparing import BASELINES, ELASTICFLOW, compared, contenders, specs_of
from research.elasticflow.drawings import bars
from research.elasticflow.explaining import explained
from research.elasticflow.figures.fig6b import met
from research.elasticflow.rows import PolicyRow, Variant, find
from research.elasticflow.specs import ElasticFlowSpec
from research.figure import Check, Context, FigureDefinition, FigureReport, at_least, within

PLACE = "64 T4 GPUs, 195 jobs"
BASE = ElasticFlowSpec("", "t4_195job", 16, 4, 60.0)
WHO = contenders((*BASELINES, "Pollux", ELASTICFLOW))


def runs(full: bool) -> Sequence[ElasticFlowSpec]:
    """Return a run of every policy on the trace."""
    return specs_of(BASE, WHO)


def report(context: Context) -> FigureReport:
    """Report the bars; this deterministic trace is the best end-to-end check of the baselines."""
    rows = explained(compared(context, "8a", PLACE, BASE, WHO), context)
    return FigureReport(
        name=FIGURE.name,
        title=FIGURE.title,
        made="trace t4_195job on 16 x 4 T4, slot 60 s, pauses measured",
        rows=rows,
        drawings=[bars("fig8a", "On time, 195 jobs on 64 T4 GPUs", rows)],
        checks=_checks(rows),
    )


def _checks(rows: Sequence[PolicyRow]) -> list[Check]:
    return [
        within("EDF as published, jobs on time", met(find(rows, PLACE, "edf_artifact")), 23, 2),
        within("Tiresias, jobs on time", met(find(rows, PLACE, "tiresias")), 56, 3),
        at_least(
            "ElasticFlow with batch admission, jobs on time",
            met(find(rows, PLACE, "elasticflow", Variant.TOGETHER)), 135,
        ),
        at_least(
            "ElasticFlow one by one, jobs on time",
            met(find(rows, PLACE, "elasticflow", Variant.ONE_BY_ONE)), 150,
        ),
    ]  # fmt: skip


FIGURE = FigureDefinition("fig8a", "Figure 8(a): 195 jobs on 64 T4 GPUs", True, runs, report)
