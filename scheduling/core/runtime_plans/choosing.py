"""Chooses the runtime plan of a generation: a pure function, called once for each generation."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from scheduling.core.runtime_plans.plan import PlanFamily, RuntimePlan, Shape, Synchroniser

#: One copy of the gradients less, in time and in memory.
DENSE = Synchroniser("dense", (("gradients_in_buckets", True),))
#: Those of experts and sparse embeddings come first, since the others take all remaining gradients.
_FIRST = (Synchroniser("expert_parallel"), Synchroniser("sparse"))
_WITHOUT_PLAN = (*_FIRST, DENSE)
#: Planners of `communication/` and `moe/` whose plans the training runtime carries out.
CARRIED_OUT = ("dense", "zen", "cupcake", "espresso", "combined", "lina")


@dataclass(frozen=True)
class GradientOrders:
    """What a communication plan asks ranks to do.

    Attributes:
        sparse: Zen's message; None where rows of sparse embeddings are gathered as without any plan.
        rest: the message for gradients that are not sparse; None where they are all-reduced as without any.
        gradients: names of those in order of readiness.
        experts: choices of Lina's schedule, which takes all gradients; None for any other plan.
    """

    sparse: Mapping[str, Any] | None
    rest: Mapping[str, Any] | None
    gradients: tuple[str, ...]
    experts: Mapping[str, Any] | None = None

    @property
    def synchronisers(self) -> tuple[Synchroniser, ...]:
        """Those that carry it out."""
        if self.experts is not None:
            return (_lina(self.experts),)
        first = () if self.sparse is None else (Synchroniser("zen", (("plan", self.sparse),)),)
        if self.rest is None:
            return (*first, *_WITHOUT_PLAN)
        choices = (("plan", self.rest), ("gradients", list(self.gradients)), ("momentum", 0.0))
        return (*first, *_FIRST, Synchroniser("compressed", choices))


def choose_plan_family() -> PlanFamily:
    """The plan family of a job of which no gradients were measured."""
    return PlanFamily.DENSE


def choose_runtime_plan(
    servers: Sequence[Hashable],
    family: str = PlanFamily.DENSE,
    orders: GradientOrders | None = None,
    at_levels: Mapping[int, GradientOrders | None] | None = None,
) -> RuntimePlan:
    """The runtime plan of a generation.

    Args:
        servers: the server of each rank. family: of the job's plans.
        orders: of the communication plan for this placement; None where the family has nothing better than
            none. at_levels: the same of each level of a measurement.
    """
    levels = sorted((at_levels or {}).items())
    is_planned = any(one is not None for _, one in levels)

    def synchronisers(orders: GradientOrders | None) -> tuple[Synchroniser, ...]:
        return _WITHOUT_PLAN if orders is None else orders.synchronisers

    return RuntimePlan(
        family=str(family),
        shape=Shape.PACKED if len(set(servers)) <= 1 else Shape.SPREAD,
        synchronisers=synchronisers(orders),
        at_levels=tuple((ranks, synchronisers(one)) for ranks, one in levels) if is_planned else (),
    )


def uniform_shape(servers: Sequence[Hashable]) -> tuple[int, int] | None:
    """On how many servers ranks are, and how many on each; None where that differs, or where a server's ranks
    do not follow one another: such a placement has no communication plan."""
    runs = [len(list(run)) for _, run in groupby(servers)]
    if len(runs) != len(set(servers)) or len(set(runs)) != 1:
        return None
    return len(runs), runs[0]


def _lina(choices: Mapping[str, Any]) -> Synchroniser:
    """Return Lina's schedule. Packing changes while the job trains if the plan knows memory for that."""
    chosen = [(name, choices[name]) for name in ("mode", "partition_bytes")]
    if "expert_bytes" not in choices:
        return Synchroniser("lina", (*chosen, ("packs", False)))
    return Synchroniser("lina", (*chosen, ("packs", True), ("expert_bytes", choices["expert_bytes"])))
