"""Lyra as a paper that can be reproduced."""

from __future__ import annotations

from simulation.reproduction.figure import Published
from simulation.reproduction.lyra.checks import finished
from simulation.reproduction.lyra.figures import FIGURES
from simulation.reproduction.lyra.published import SOURCE
from simulation.reproduction.paper import Paper

PAPER = Paper(
    name="lyra",
    title="Lyra, reproduced",
    report="report-lyra.html",
    short="an eighth of the cluster",
    full="the whole cluster",
    figures=FIGURES,
    # Its published values stand in the figures' own tables.
    published=lambda: Published({}, SOURCE),
    checks=finished,
)
