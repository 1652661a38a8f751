"""Which runtime plan a generation gets: a pure function, asked once for each generation."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from scheduling.core.runtime_plans.plan import PlanFamily, RuntimePlan, Shape, Synchroniser


def choose_plan_family() -> PlanFamily:
    """The family of a job's plans on whatever GPUs: its curve is known before its GPUs are."""
    return PlanFamily.DENSE


def choose_runtime_plan(servers: Sequence[Hashable]) -> RuntimePlan:
    """The plan of a generation whose ranks run on these servers, one for each rank.

    Sparse embeddings come first, as the dense kind takes all that is left.
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
