"""Papers that can be reproduced. A paper is a folder beside this file and a name here."""

from __future__ import annotations

from simulation.reproduction.adaptive_gating import paper as adaptive_gating
from simulation.reproduction.cupcake import paper as cupcake
from simulation.reproduction.elasticflow import paper as elasticflow
from simulation.reproduction.espresso import paper as espresso
from simulation.reproduction.gemini import paper as gemini
from simulation.reproduction.lina import paper as lina
from simulation.reproduction.lyra import paper as lyra
from simulation.reproduction.moesys import paper as moesys
from simulation.reproduction.paper import Paper
from simulation.reproduction.zen import paper as zen

PAPERS: dict[str, Paper] = {
    each.PAPER.name: each.PAPER
    for each in (adaptive_gating, cupcake, elasticflow, espresso, gemini, lina, lyra, moesys, zen)
}
