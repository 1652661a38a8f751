"""Policies of a live cluster by name. A policy is one file in this folder and one line here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from scheduling.policies.base import Policy
from scheduling.policies.elasticflow import ElasticFlow
from scheduling.policies.lyra import Lyra
from scheduling.policies.punctual import Punctual

DEFAULT_POLICY = "punctual"

POLICIES: dict[str, Policy] = {policy.name: policy for policy in (Punctual(), ElasticFlow(), Lyra())}


class UnknownPolicy(ValueError):
    """No policy has one of these names."""

    def __init__(self, names: Sequence[str], known: Iterable[str]) -> None:
        wrong = " or ".join(repr(name) for name in names)
        super().__init__(f"there is no policy {wrong}; there are {', '.join(sorted(known))}")


def policy_named(name: str) -> Policy:
    """The policy of that name. Raises UnknownPolicy, which lists the names there are."""
    return chosen_from(POLICIES, [name])[0]


def chosen_from(policies: Mapping[str, Policy], names: Iterable[str]) -> list[Policy]:
    """The policies of these names. Raises UnknownPolicy, which lists the names there are."""
    names = list(names)
    unknown = [name for name in names if name not in policies]
    if unknown:
        raise UnknownPolicy(unknown, policies)
    return [policies[name] for name in names]


__all__ = ["DEFAULT_POLICY", "POLICIES", "Policy", "UnknownPolicy", "chosen_from", "policy_named"]
