"""Definitions shared by the choice and its timeline: separately exchanged gradients, and groups as
tensors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from communication.combined.plan import CandidatePlan
from communication.combined.question import PlanQuestion
from communication.cupcake.partitions import Boundaries
from communication.profiles.model import ModelProfile
from communication.zen.choosing import TensorChoice, choose_scheme
from communication.zen.schemes import Scheme


def gathered(question: PlanQuestion) -> list[TensorChoice]:
    """Return the gradients kept as rows, exchanged as without a plan: every rank gathers all rows."""
    only = (Scheme.DENSE, Scheme.AGSPARSE)
    return [choose_scheme(one, question.placement, question.links, schemes=only) for one in question.rows]


def travelling_apart(question: PlanQuestion, plan: CandidatePlan) -> list[TensorChoice]:
    """Return the gradients that are exchanged separately under a plan: those that it names, else all rows."""
    return gathered(question) if plan.sparse is None else list(plan.sparse.sparse_tensors)


def others(question: PlanQuestion, plan: CandidatePlan) -> ModelProfile | None:
    """Return all other gradients; None if there are none."""
    return question.beside({each.profile.tensor for each in travelling_apart(question, plan)})


def groups_as_tensors(model: ModelProfile, boundaries: Boundaries) -> ModelProfile:
    """Return a model with each group as one tensor, which is ready with its last gradient."""
    begins = np.array([0, *boundaries[:-1]])
    return replace(
        ModelProfile.unnamed(
            model.name,
            np.add.reduceat(model.elements, begins),
            np.add.reduceat(model.gap_seconds, begins),
            model.other_seconds,
        ),
        bytes_per_element=model.bytes_per_element,
    )
