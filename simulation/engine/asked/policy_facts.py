"""What simulations alone take into account about a policy: how its published simulation treated pauses and
batch sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PolicyFacts:
    """``charges_pauses``: a job pays a pause when its GPUs change. ``pauses_everybody``: every job that runs
    on pauses at every reallocation, its GPUs changed or not. ``adapts_batch``: jobs run with the batch size
    that suits their GPUs best, where a workload says what that gives.
    """

    charges_pauses: bool = True
    pauses_everybody: bool = False
    adapts_batch: bool = False


#: Policies that were published with something else than the plain rule. The live platform measures pauses and
#: never changes a batch.
_FACTS: Mapping[str, PolicyFacts] = {
    "edf_artifact": PolicyFacts(charges_pauses=False),
    "edf_admission_artifact": PolicyFacts(pauses_everybody=True),
    "gandiva_artifact": PolicyFacts(pauses_everybody=True),
    "lyra_pollux": PolicyFacts(adapts_batch=True),
    "lyra_tuned": PolicyFacts(adapts_batch=True),
    "pollux": PolicyFacts(adapts_batch=True),
}


def facts_of(policy: str) -> PolicyFacts:
    """What to take into account about the policy of that name."""
    return _FACTS.get(policy, PolicyFacts())
