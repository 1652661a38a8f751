"""Scheduling policies by name. A policy is one file in this folder and one line here."""

from __future__ import annotations

from scheduling.policies.afs import Afs
from scheduling.policies.base import Policy
from scheduling.policies.chronus import Chronus
from scheduling.policies.edf import Edf
from scheduling.policies.edf_admission import EdfAdmission
from scheduling.policies.edf_admission_artifact import EdfAdmissionArtifact
from scheduling.policies.edf_artifact import EdfArtifact
from scheduling.policies.edf_elastic import EdfElastic
from scheduling.policies.elasticflow import ElasticFlow
from scheduling.policies.fifo import Fifo, FifoBackfill
from scheduling.policies.gandiva import Gandiva
from scheduling.policies.gandiva_artifact import GandivaArtifact
from scheduling.policies.lyra import Lyra
from scheduling.policies.lyra_gandiva import LyraGandiva
from scheduling.policies.lyra_pollux import LyraPollux
from scheduling.policies.lyra_tuned import LyraTuned
from scheduling.policies.opportunistic import Opportunistic
from scheduling.policies.pollux import Pollux
from scheduling.policies.punctual import Punctual
from scheduling.policies.sjf import Sjf
from scheduling.policies.themis import Themis
from scheduling.policies.tiresias import Tiresias

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


def policy_named(name: str) -> Policy:
    """The policy of that name. Raises ValueError that lists the names there are."""
    try:
        return POLICIES[name]
    except KeyError:
        known = ", ".join(sorted(POLICIES))
        raise ValueError(f"there is no policy {name!r}; there are {known}") from None


__all__ = ["DEFAULT_POLICY", "POLICIES", "Policy", "policy_named"]
