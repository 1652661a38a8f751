"""Scheduling policies by name. A policy is one file in this folder and one line here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from scheduling.policies.base import Policy
from scheduling.policies.elasticflow import ElasticFlow
from scheduling.policies.lyra import Lyra
from scheduling.policies.punctual import Punctual
from simulation.baselines.against_elasticflow.chronus import Chronus
from simulation.baselines.against_elasticflow.edf import Edf
from simulation.baselines.against_elasticflow.edf_admission import EdfAdmission
from simulation.baselines.against_elasticflow.edf_admission_artifact import EdfAdmissionArtifact
from simulation.baselines.against_elasticflow.edf_artifact import EdfArtifact
from simulation.baselines.against_elasticflow.edf_elastic import EdfElastic
from simulation.baselines.against_elasticflow.gandiva import Gandiva
from simulation.baselines.against_elasticflow.gandiva_artifact import GandivaArtifact
from simulation.baselines.against_elasticflow.pollux import Pollux
from simulation.baselines.against_elasticflow.themis import Themis
from simulation.baselines.against_elasticflow.tiresias import Tiresias
from simulation.baselines.against_lyra.afs import Afs
from simulation.baselines.against_lyra.fifo import Fifo, FifoBackfill
from simulation.baselines.against_lyra.lyra_gandiva import LyraGandiva
from simulation.baselines.against_lyra.lyra_pollux import LyraPollux
from simulation.baselines.against_lyra.lyra_tuned import LyraTuned
from simulation.baselines.against_lyra.opportunistic import Opportunistic
from simulation.baselines.against_lyra.sjf import Sjf

DEFAULT_POLICY = "punctual"

POLICIES: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        Punctual(),
        ElasticFlow(),
        Edf(),
        EdfArtifact(),
        EdfAdmission(),
        EdfAdmissionArtifact(),
        EdfElastic(),
        Gandiva(),
        GandivaArtifact(),
        Tiresias(),
        Themis(),
        Chronus(),
        Pollux(),
        Lyra(),
        Fifo(),
        FifoBackfill(),
        Sjf(),
        Opportunistic(),
        Afs(),
        LyraGandiva(),
        LyraTuned(),
        LyraPollux(),
    )
}


class UnknownPolicy(ValueError):
    """No policy has one of these names."""

    def __init__(self, names: Sequence[str]) -> None:
        wrong = " or ".join(repr(name) for name in names)
        super().__init__(f"there is no policy {wrong}; there are {', '.join(sorted(POLICIES))}")


def policy_named(name: str) -> Policy:
    """The policy of that name. Raises UnknownPolicy, which lists the names there are."""
    return policies_named([name])[0]


def policies_named(names: Iterable[str]) -> list[Policy]:
    """The policies of these names. Raises UnknownPolicy, which lists the names there are."""
    names = list(names)
    unknown = [name for name in names if name not in POLICIES]
    if unknown:
        raise UnknownPolicy(unknown)
    return [POLICIES[name] for name in names]


def policies_where(holds: Callable[[Policy], bool]) -> list[str]:
    """Names of the policies for which ``holds`` is true, the default policy first."""
    names = [DEFAULT_POLICY, *(name for name in POLICIES if name != DEFAULT_POLICY)]
    return [name for name in names if holds(POLICIES[name])]


__all__ = [
    "DEFAULT_POLICY",
    "POLICIES",
    "Policy",
    "UnknownPolicy",
    "policies_named",
    "policies_where",
    "policy_named",
]
