"""Plan families of functions with mixture-of-experts layers.

The name of such a family is that of its gradients' plans, `+`, and `moe`: `moe` without gradient plans,
`lossy(fp16)+moe`.
"""

from __future__ import annotations

import re

from scheduling.core.runtime_plans.plan import PlanFamily

_NAME = re.compile(r"(?:(?P<gradients>.+)\+)?moe")
#: Families without gradient plans.
UNPLANNED = (PlanFamily.DENSE.value, "moe")


def has_experts(family: str) -> bool:
    """Return whether the family is one of functions with mixture-of-experts layers."""
    return _NAME.fullmatch(family) is not None


def gradients_of(family: str) -> str:
    """Return the family of the gradients' plans alone."""
    found = _NAME.fullmatch(family)
    return family if found is None else found["gradients"] or PlanFamily.DENSE.value


def with_experts(gradients: str) -> str:
    """Return the family of a function with mixture-of-experts layers, by that of its gradients' plans."""
    return "moe" if gradients == PlanFamily.DENSE else f"{gradients}+moe"


def with_gradients(family: str, gradients: str) -> str:
    """Return the family with other plans of gradients, experts as before."""
    return with_experts(gradients) if has_experts(family) else gradients


def without_gradient_plan(family: str) -> str:
    """Return the family without plans of gradients, experts as before."""
    return with_gradients(family, PlanFamily.DENSE.value)
