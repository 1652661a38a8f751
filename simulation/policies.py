"""Policies that simulations choose among: those of a live cluster and the published baselines."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from scheduling.policies import DEFAULT_POLICY, UnknownPolicy, chosen_from
from scheduling.policies import POLICIES as LIVE_POLICIES
from scheduling.policies.base import Policy
from simulation.baselines import BASELINES

POLICIES: dict[str, Policy] = LIVE_POLICIES | {policy.name: policy for policy in BASELINES}


def policy_named(name: str) -> Policy:
    """Return the policy of that name. Raises UnknownPolicy, which lists the known names."""
    return policies_named([name])[0]


def policies_named(names: Iterable[str]) -> list[Policy]:
    """Return the policies of these names. Raises UnknownPolicy, which lists the known names."""
    return chosen_from(POLICIES, names)


def policies_where(holds: Callable[[Policy], bool]) -> list[str]:
    """Return the names of the policies for which ``holds`` is true, the default policy first."""
    names = [DEFAULT_POLICY, *(name for name in POLICIES if name != DEFAULT_POLICY)]
    return [name for name in names if holds(POLICIES[name])]


__all__ = ["DEFAULT_POLICY", "POLICIES", "UnknownPolicy", "policies_named", "policies_where", "policy_named"]
