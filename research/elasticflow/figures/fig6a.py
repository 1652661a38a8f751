"""Figure 6(a): 25 jobs on 32 GPUs of the testbed, with stand-in jobs because the trace is not published."""

from __future__ import annotations

from collections.abc import Sequence

from research.elasticflow.comparing import compared, contenders, specs_of
from research.elasticflow.drawings import bars
from research.elasticflow.explaining import explained
from research.elasticflow.specs import ElasticFlowSpec
from research.figure import Context, FigureDefinition, FigureReport

PLACE = "32 GPUs, 25 jobs"
SERIES = ("EDF", "Gandiva", "Tiresias", "Themis", "Chronus", "Pollux", "ElasticFlow")
NO_POLLUX = "Pollux needs tables of statistical efficiency, and the public ones are of T4 GPUs"
BASE = ElasticFlowSpec("", "testbed_195job", 4, 8, 240.0, begin_at=3_733_274.0, jobs=25)
WHO = contenders(name for name in SERIES if name != "Pollux")


def runs(full: bool) -> Sequence[ElasticFlowSpec]:
    """Return a run of every policy on the stand-in."""
    return specs_of(BASE, WHO)


def report(context: Context) -> FigureReport:
    """Report the bars, with the reason why the jobs differ."""
    rows = compared(context, "6a", PLACE, BASE, contenders(SERIES), missing={"pollux": NO_POLLUX})
    rows = explained(rows, context)
    return FigureReport(
        name=FIGURE.name,
        title=FIGURE.title,
        made="25 jobs of the 195-job trace on 4 x 8 A100, slot 240 s, pauses measured",
        notes=(
            (
                "Not reproducible as published: the 25-job trace is in no public archive. What is known of "
                "it is its start time, 3,733,274 s, which is the submission of a job of the 195-job trace. "
                "The 25 jobs from that one on stand in for it."
            ),
            f"Pollux is left out: {NO_POLLUX}.",
        ),
        rows=rows,
        drawings=[bars("fig6a", "On time, 25 jobs on 32 GPUs", rows)],
    )


FIGURE = FigureDefinition("fig6a", "Figure 6(a): 25 jobs on 32 GPUs (stand-in)", True, runs, report)
