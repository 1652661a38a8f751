"""The exact program beside brute force and the other algorithms, on random models of few tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from communication.cupcake.affine_program import best_affine_fusion
from communication.cupcake.branch_and_bound import Prunings, search
from communication.cupcake.costs import AffineCost, ThresholdCost
from communication.cupcake.pareto_program import best_fusion
from communication.cupcake.partitions import all_partitions
from communication.cupcake.problem import FusionProblem
from communication.cupcake.timeline import iteration_seconds
from research.figure import Check, Context, FigureDefinition, FigureReport
from research.runs import RunSpec

NAME = "vectors"
DRAWN, DRAWN_IN_FULL, MOST_TENSORS = 100, 1000, 8


def runs(full: bool) -> Sequence[RunSpec]:
    """Return no run: everything is computed."""
    return ()


def report(context: Context) -> FigureReport:
    """Report what must hold for any model, and why Pruning 2 is not used."""
    return FigureReport(
        name=NAME,
        title=FIGURE.title,
        made="computed by communication/cupcake",
        notes=(
            (
                "Safe fusion (Pruning 2) is exact where encoding is affine. An encoder that takes one time "
                "up to a threshold, as measured ones do, is not; so plans are made by the exact program."
            ),
        ),
        checks=(*_random_models(DRAWN_IN_FULL if context.full else DRAWN), _counterexample()),
    )


def _random_models(count: int) -> list[Check]:
    rng = np.random.default_rng(0)
    exact = affine = wrong = 0
    for number in range(count):
        is_affine = number % 2 == 0
        problem = _drawn(rng, is_affine)
        best = min(iteration_seconds(problem, one) for one in all_partitions(problem.tensors))
        limit = best * (1 + 1e-9)
        exact += best_fusion(problem).iteration_seconds <= limit
        if is_affine:
            affine += 1
            found = (
                iteration_seconds(problem, best_affine_fusion(problem)),
                search(problem).iteration_seconds,
            )
            wrong += max(found) > limit
    return [
        Check("The exact program equals brute force", exact == count, f"{exact} of {count} random models"),
        Check(
            "The affine program and Algorithm 5.1 do so with affine costs",
            wrong == 0,
            f"{affine - wrong} of {affine} random models",
        ),
    ]


def _drawn(rng: np.random.Generator, affine: bool) -> FusionProblem:
    tensors = int(rng.integers(1, MOST_TENSORS + 1))
    fixed, per_byte = rng.exponential(1.0, 2)
    encode = AffineCost(fixed, per_byte / 5) if affine else ThresholdCost(fixed, rng.uniform(0.5, 8.0))
    transfer = AffineCost(*rng.exponential(0.5, 2))
    return FusionProblem(rng.exponential(2.0, tensors), rng.exponential(3.0, tensors), encode, transfer)


def _counterexample() -> Check:
    problem = FusionProblem(
        np.array([0.0, 2.0, 0.0, 1.0]),
        np.array([8.0, 2.0, 1.0, 1.0]),
        ThresholdCost(4.0, 2.0),
        AffineCost(0.0, 1.0),
    )
    found = (
        best_fusion(problem).iteration_seconds,
        search(problem, Prunings(inexact=True), first_tried=()).iteration_seconds,
    )
    name = "Four tensors and an encoder with a threshold: 29 exactly, 30 with safe fusion"
    return Check(name, np.allclose(found, (29.0, 30.0)), f"{found[0]:g} and {found[1]:g}")


FIGURE = FigureDefinition(NAME, "The exact program beside brute force", False, runs, report)
