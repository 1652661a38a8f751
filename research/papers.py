"""Papers that can be reproduced: each has a folder beside this file and an entry here."""

from __future__ import annotations

from research.adaptive_gating import paper as adaptive_gating
from research.cupcake import paper as cupcake
from research.elasticflow import paper as elasticflow
from research.espresso import paper as espresso
from research.gemini import paper as gemini
from research.lina import paper as lina
from research.lyra import paper as lyra
from research.moesys import paper as moesys
from research.paper import Paper
from research.zen import paper as zen

PAPERS: dict[str, Paper] = {
    each.PAPER.name: each.PAPER
    for each in (adaptive_gating, cupcake, elasticflow, espresso, gemini, lina, lyra, moesys, zen)
}
