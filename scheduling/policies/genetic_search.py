"""A genetic search for the sizes of jobs with the greatest power mean of speed-ups, within a budget of generations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduling.core.snapshot import FloatArray, IntArray

WAITING_SPEEDUP = 0.01
"""Speed-up at which a waiting job counts: the power mean of -1 knows no 0."""


@dataclass(frozen=True, slots=True)
class Budget:
    """``population`` divisions are kept, and as many new ones tried in each of ``generations``. Published: 100 and 100 to 250."""

    population: int = 32
    generations: int = 20


@dataclass(frozen=True)
class Choices:
    """One row a job, one column a choice; column 0 is no worker. ``count``: choices beside that. ``now``: the present choice.

    ``discount``: factor of the speed-up of a running job whose choice changes. ``capacity``: GPUs in all.
    """

    workers: IntArray
    gpus: IntArray
    speedup: FloatArray
    count: IntArray
    now: IntArray
    discount: FloatArray
    capacity: int


def best_sizes(choices: Choices, budget: Budget, seed: int) -> IntArray:
    """Workers of each job in the best division found; the same question and seed give the same answer."""
    jobs = choices.count.size
    if jobs == 0:
        return np.zeros(0, dtype=np.int64)
    draw = np.random.default_rng(seed)
    smallest = np.minimum(1, choices.count)
    population = draw.integers(0, choices.count[None, :] + 1, (budget.population, jobs))
    population[0], population[1] = choices.now, np.maximum(choices.now, smallest)
    population[2] = smallest
    population = _repaired(population, choices, draw)
    fitness = _fitness(population, choices)
    for _ in range(budget.generations):
        children = _repaired(_children(population, fitness, choices, draw), choices, draw)
        everybody = np.concatenate((population, children))
        merits = np.concatenate((fitness, _fitness(children, choices)))
        kept = np.argsort(-merits, kind="stable")[: budget.population]
        population, fitness = everybody[kept], merits[kept]
    best: IntArray = choices.workers[np.arange(jobs), population[int(np.argmax(fitness))]]
    return best


def _fitness(population: IntArray, choices: Choices) -> FloatArray:
    jobs = np.arange(choices.count.size)
    speedup = choices.speedup[jobs, population]
    changed = (population != choices.now) & (choices.now > 0)
    speedup = np.maximum(np.where(changed, speedup * choices.discount, speedup), WAITING_SPEEDUP)
    mean: FloatArray = jobs.size / (1.0 / speedup).sum(axis=1)
    return mean


def _children(
    population: IntArray, fitness: FloatArray, choices: Choices, draw: np.random.Generator
) -> IntArray:
    """Winners of tournaments of two, crossed job by job, about one job in each child drawn anew."""
    size, jobs = population.shape
    rivals = draw.integers(0, size, (2, 2, size))
    parents = np.where(fitness[rivals[0]] >= fitness[rivals[1]], rivals[0], rivals[1])
    crossed = np.where(draw.random((size, jobs)) < 0.5, population[parents[0]], population[parents[1]])
    fresh = draw.integers(0, choices.count[None, :] + 1, (size, jobs))
    return np.where(draw.random((size, jobs)) < 1.0 / jobs, fresh, crossed)


def _repaired(population: IntArray, choices: Choices, draw: np.random.Generator) -> IntArray:
    """Every division within the capacity: in a random order, jobs that do not fit any more get their smallest size, or none."""
    jobs = choices.count.size
    order = draw.permutation(jobs)
    repaired = population.copy()
    free = np.full(population.shape[0], choices.capacity)
    smallest = np.minimum(1, choices.count)
    for job in order.tolist():
        wanted = choices.gpus[job, repaired[:, job]]
        base = choices.gpus[job, smallest[job]]
        repaired[:, job] = np.where(
            wanted <= free, repaired[:, job], np.where(base <= free, smallest[job], 0)
        )
        free -= choices.gpus[job, repaired[:, job]]
    return repaired
