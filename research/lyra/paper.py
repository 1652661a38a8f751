"""Lyra as a paper that can be reproduced."""

from __future__ import annotations

from research.figure import Published
from research.lyra.checks import finished
from research.lyra.figures import FIGURES
from research.lyra.published import SOURCE
from research.paper import Paper

PAPER = Paper(
    name="lyra",
    title="Lyra, reproduced",
    report="report-lyra.html",
    short="an eighth of the cluster",
    full="the whole cluster",
    figures=FIGURES,
    # Its published values are in the figures' own tables.
    published=lambda: Published({}, SOURCE),
    checks=finished,
)
