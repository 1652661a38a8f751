"""ElasticFlow as a paper that can be reproduced."""

from __future__ import annotations

from research.elasticflow.acceptance import overall_checks
from research.elasticflow.figures import FIGURES
from research.elasticflow.published import read_published
from research.paper import Paper

PAPER = Paper(
    name="elasticflow",
    title="ElasticFlow, reproduced",
    report="report.html",
    short="fewer traces and one seed",
    full="all traces, three seeds",
    figures=FIGURES,
    published=read_published,
    checks=overall_checks,
    without_traces=(
        ", and the synthetic figures draw built-in models instead of the measured ones: their levels cannot "
        "be compared"
    ),
)
