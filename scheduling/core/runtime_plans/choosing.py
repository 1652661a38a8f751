"""Chooses the runtime plan of a generation: a pure function, called once for each generation."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from scheduling.core.runtime_plans.expert_families import packing_of, packing_on
from scheduling.core.runtime_plans.plan import PlanFamily, RuntimePlan, Shape, Synchroniser

#: One copy of the gradients less, in time and in memory.
DENSE = Synchroniser("dense", (("gradients_in_buckets", True),))
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

    def synchronisers(self, packing: int | None) -> tuple[Synchroniser, ...]:
        """Return those that carry it out. `packing`: workers that host each expert; None: the runtime's."""
        if self.experts is not None:
            return (_lina(self.experts, packing),)
        first = () if self.sparse is None else (Synchroniser("zen", (("plan", self.sparse),)),)
        if self.rest is None:
            return (*first, *_without_plan(packing))
        choices = (("plan", self.rest), ("gradients", list(self.gradients)), ("momentum", 0.0))
        return (*first, *_first(packing), Synchroniser("compressed", choices))


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
    packing = packing_of(family)
    planned = packing is not None or any(one is not None for _, one in levels)

    def synchronisers(ranks: int, orders: GradientOrders | None) -> tuple[Synchroniser, ...]:
        here = None if packing is None else packing_on(ranks, packing)
        return _without_plan(here) if orders is None else orders.synchronisers(here)

    return RuntimePlan(
        family=str(family),
        shape=Shape.PACKED if len(set(servers)) <= 1 else Shape.SPREAD,
        synchronisers=synchronisers(len(servers), orders),
        at_levels=tuple((ranks, synchronisers(ranks, one)) for ranks, one in levels) if planned else (),
    )


def uniform_shape(servers: Sequence[Hashable]) -> tuple[int, int] | None:
    """On how many servers ranks are, and how many on each; None where that differs, or where a server's ranks
    do not follow one another: such a placement has no communication plan."""
    runs = [len(list(run)) for _, run in groupby(servers)]
    if len(runs) != len(set(servers)) or len(set(runs)) != 1:
        return None
    return len(runs), runs[0]


def _first(packing: int | None) -> tuple[Synchroniser, ...]:
    """Those of experts and sparse embeddings come first, since the others take all remaining gradients."""
    choices = () if packing is None else (("packing", packing),)
    return (Synchroniser("expert_parallel", choices), Synchroniser("sparse"))


def _lina(choices: Mapping[str, Any], packing: int | None) -> Synchroniser:
    """The packing stays as it is: no plan knows how much memory more hosts of an expert would take."""
    hosts = () if packing is None else (("packing", packing),)
    told = ((name, choices[name]) for name in ("mode", "partition_bytes"))
    return Synchroniser("lina", (*told, ("packs", False), *hosts))


def _without_plan(packing: int | None) -> tuple[Synchroniser, ...]:
    return (*_first(packing), DENSE)
