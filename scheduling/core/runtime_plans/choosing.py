"""Chooses the runtime plan of a generation: a pure function, called once for each generation."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from scheduling.core.runtime_plans.plan import PlanFamily, RuntimePlan, Shape, Synchroniser


def choose_plan_family() -> PlanFamily:
    """The plan family of a job on any GPUs: its curve is known before its GPUs are."""
    return PlanFamily.DENSE


def choose_runtime_plan(servers: Sequence[Hashable]) -> RuntimePlan:
    """The runtime plan of a generation; ``servers`` names the server of each rank.

    Synchronisers of sparse embeddings come first, since the dense synchroniser takes all remaining gradients.
    """
    return RuntimePlan(
        family=choose_plan_family(),
        shape=Shape.PACKED if len(set(servers)) <= 1 else Shape.SPREAD,
        synchronisers=(
            Synchroniser("sparse"),
            # One copy of the gradients less, in time and in memory.
            Synchroniser("dense", (("gradients_in_buckets", True),)),
        ),
    )
