"""What the choice and its timeline must see alike: which gradients travel apart, and groups as tensors."""

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
    """Gradients that are kept as rows, as they are exchanged without any plan: everybody gets all rows."""
    only = (Scheme.DENSE, Scheme.AGSPARSE)
    return [choose_scheme(one, question.placement, question.links, schemes=only) for one in question.rows]


def travelling_apart(question: PlanQuestion, plan: CandidatePlan) -> list[TensorChoice]:
    """The gradients that a plan does not treat like all others: those that it names, else those of rows."""
    return gathered(question) if plan.sparse is None else list(plan.sparse.sparse_tensors)


def others(question: PlanQuestion, plan: CandidatePlan) -> ModelProfile | None:
    """The gradients beside these; None where there are none."""
    return question.beside({each.profile.tensor for each in travelling_apart(question, plan)})


def groups_as_tensors(model: ModelProfile, boundaries: Boundaries) -> ModelProfile:
    """Each group as a tensor: ready with its last gradient."""
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
