"""Facts about policies that only simulations use: how their published simulation treated pauses and batch
sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PolicyFacts:
    """``charges_pauses``: a job pays a pause when its GPUs change. ``pauses_everybody``: every job that keeps
    running pauses at every reallocation, even with unchanged GPUs. ``adapts_batch``: jobs run with the batch
    size that suits their GPUs best, where the workload gives the resulting throughput.
    """

    charges_pauses: bool = True
    pauses_everybody: bool = False
    adapts_batch: bool = False


#: Policies whose publication departs from the defaults. The live platform measures pauses and never changes a
#: batch size.
_FACTS: Mapping[str, PolicyFacts] = {
    "edf_artifact": PolicyFacts(charges_pauses=False),
    "edf_admission_artifact": PolicyFacts(pauses_everybody=True),
    "gandiva_artifact": PolicyFacts(pauses_everybody=True),
    "lyra_pollux": PolicyFacts(adapts_batch=True),
    "lyra_tuned": PolicyFacts(adapts_batch=True),
    "pollux": PolicyFacts(adapts_batch=True),
}


def facts_of(policy: str) -> PolicyFacts:
    """Return the facts about the policy of that name."""
    return _FACTS.get(policy, PolicyFacts())
