"""Scheduling policies by name. A policy is one file in this folder and one line here."""

from __future__ import annotations

from scheduling.policies.base import Policy
from scheduling.policies.elasticflow import ElasticFlow
from scheduling.policies.punctual import Punctual

DEFAULT_POLICY = "punctual"

POLICIES: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        Punctual(),
        ElasticFlow(),
    )
}


def policy_named(name: str) -> Policy:
    """The policy of that name. Raises ValueError that lists the names there are."""
    try:
        return POLICIES[name]
    except KeyError:
        known = ", ".join(sorted(POLICIES))
        raise ValueError(f"there is no policy {name!r}; there are {known}") from None


__all__ = ["DEFAULT_POLICY", "POLICIES", "Policy", "policy_named"]
