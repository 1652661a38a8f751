"""Lyra with tuned jobs: elastic jobs adapt batch size and learning rate to their workers (Lyra 3.7.1)."""

from __future__ import annotations

from scheduling.policies.lyra import Lyra


class LyraTuned(Lyra):
    """The same scheduler; what workers are worth to an elastic job is its goodput.

    Simulations give it those speeds. The live platform never changes a global batch, so there it is `lyra`.
    """

    name = "lyra_tuned"
