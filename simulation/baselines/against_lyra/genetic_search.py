"""Pollux's genetic search for the placement with the greatest power mean of speed-ups, within a budget of
generations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kernels.compiling import kernel
from scheduling.core.question.snapshot import FloatArray, IntArray
from simulation.baselines.against_lyra.genetic_operators import (
    Question,
    WorkerCounts,
    cross,
    merit,
    mutate,
    repair,
)
from simulation.baselines.against_lyra.non_dominated import crowding, fronts, survivors


@dataclass(frozen=True, slots=True)
class Budget:
    """The effort of a search. Published: a population of 100 and 100 generations; 250 in Lyra's experiments.

    Raises ValueError for a population that cannot be paired.
    """

    #: Number of members.
    population: int = 100
    #: Number of generations.
    generations: int = 100
    #: Best members with which the next search begins; published, all.
    remembered: int = 16
    #: Limit on servers times jobs times children: larger clusters get fewer generations, at least one, so
    #: that a decision takes seconds.
    cells: int = 500_000_000

    def __post_init__(self) -> None:
        if self.population < 2 or self.population % 2:
            raise ValueError("a population is a number of pairs")

    def generations_for(self, question: Question) -> int:
        """Generations that the budget allows for a question."""
        affordable = self.cells // max(1, self.population * question.present.size)
        return max(1, min(self.generations, affordable))


class Found(NamedTuple):
    """The result of a search."""

    #: Placements, best first, no two with equal merits.
    members: WorkerCounts
    #: Fitness of each.
    fitness: FloatArray
    #: Number of generations searched.
    generations: int


def search(question: Question, seeds: WorkerCounts, budget: Budget, draw: np.random.Generator) -> Found:
    """Search for the best placement, starting from the present one and ``seeds``, shaped (members, servers,
    jobs).

    Returns allowed placements, best first. The best is at least as good as the present placement if that is
    allowed. Equal questions, seeds and states of ``draw`` give equal results.
    """
    generations = budget.generations_for(question)
    beginning = np.concatenate((question.present[None], seeds))[: budget.population]
    members, fitness, front = _evolve(question, beginning, budget.population, generations, draw)
    distinct = np.flatnonzero(front < front.size)
    order = distinct[np.argsort(-fitness[distinct], kind="stable")]
    return Found(members[order], fitness[order], generations)


@kernel
def _evolve(
    question: Question, seeds: WorkerCounts, population: int, generations: int, draw: np.random.Generator
) -> tuple[WorkerCounts, FloatArray, IntArray]:
    """Run the given number of generations, each with as many children as members. Returns (members, fitness,
    fronts)."""
    servers, jobs = question.present.shape
    everybody = np.zeros((2 * population, servers, jobs), dtype=np.int16)
    fitness, useful = np.zeros(2 * population), np.zeros(2 * population)
    # Members keep their place in memory. The first half of `order` survives; children replace the rest.
    order = np.arange(2 * population)
    for member in range(population):
        everybody[member] = seeds[member % seeds.shape[0]]
        if member >= seeds.shape[0]:
            mutate(question, everybody[member], draw)
        repair(question, everybody[member], draw)
        fitness[member], useful[member] = merit(question, everybody[member])
    front = fronts(fitness[:population], useful[:population])
    apart = crowding(fitness[:population], useful[:population], front)
    for _ in range(generations):
        for pair in range(population, 2 * population, 2):
            child, sibling = order[pair], order[pair + 1]
            one, other = _winner(front, apart, population, draw), _winner(front, apart, population, draw)
            point = int(draw.random() * jobs)
            cross(everybody[order[one]], everybody[order[other]], point, everybody[child], everybody[sibling])
            for new in (child, sibling):
                mutate(question, everybody[new], draw)
                repair(question, everybody[new], draw)
                fitness[new], useful[new] = merit(question, everybody[new])
        front = fronts(fitness[order], useful[order])
        apart = crowding(fitness[order], useful[order], front)
        placed = survivors(front, apart, 2 * population)
        order, front, apart = order[placed], front[placed], apart[placed]
    # Members equal to another one are behind all fronts. Surviving fronts have numbers below the population's
    # size.
    front = np.where(front[:population] == 2 * population, population, front[:population])
    kept = order[:population]
    return everybody[kept], fitness[kept], front


@kernel
def _winner(front: IntArray, apart: FloatArray, population: int, draw: np.random.Generator) -> int:
    """Of two survivors drawn by lot, the one on the better front, or the lonelier one."""
    one, other = int(draw.random() * population), int(draw.random() * population)
    if front[one] != front[other]:
        return one if front[one] < front[other] else other
    return one if apart[one] >= apart[other] else other
