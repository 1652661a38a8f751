"""Plan families of functions with mixture-of-experts layers.

The name of such a family is that of its gradients' plans, `+`, and `moe`: `moe` without gradient plans,
`lossy(fp16)+moe`, `moe(packing=2)`. Packing is the number of workers that host each expert; a family without
it leaves packing to the training runtime.
"""

from __future__ import annotations

import re

from scheduling.core.runtime_plans.plan import PlanFamily

_NAME = re.compile(r"(?:(?P<gradients>.+)\+)?moe(?:\(packing=(?P<packing>[1-9][0-9]*)\))?")
#: Families without gradient plans in which the runtime decides on packing.
UNPLANNED = (PlanFamily.DENSE.value, "moe")


def has_experts(family: str) -> bool:
    """Return whether the family is one of functions with mixture-of-experts layers."""
    return _NAME.fullmatch(family) is not None


def gradients_of(family: str) -> str:
    """Return the family of the gradients' plans alone."""
    found = _NAME.fullmatch(family)
    return family if found is None else found["gradients"] or PlanFamily.DENSE.value


def packing_of(family: str) -> int | None:
    """Return how many workers host each expert; None if the family does not say."""
    found = _NAME.fullmatch(family)
    return None if found is None or found["packing"] is None else int(found["packing"])


def with_experts(gradients: str, packing: int | None = None) -> str:
    """Return the family of a function with mixture-of-experts layers.

    Args:
        gradients: the family of the gradients' plans.
        packing: workers that host each expert; None to leave that to the runtime.
    """
    experts = "moe" if packing is None else f"moe(packing={packing})"
    return experts if gradients == PlanFamily.DENSE else f"{gradients}+{experts}"


def with_gradients(family: str, gradients: str) -> str:
    """Return the family with other plans of gradients, experts as before."""
    return with_experts(gradients, packing_of(family)) if has_experts(family) else gradients


def without_gradient_plan(family: str) -> str:
    """Return the family without plans of gradients, experts as before."""
    return with_gradients(family, PlanFamily.DENSE.value)


def packing_on(workers: int, packing: int) -> int:
    """Return the packing on this number of workers: its largest divisor that is not above `packing`."""
    return max(count for count in range(1, min(workers, packing) + 1) if workers % count == 0)
