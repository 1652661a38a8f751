"""Choices of planners and their questions, in a separate module that does not load numpy."""

from __future__ import annotations

from enum import StrEnum

MAX_GPUS = 4096
#: Of experts in tiers: the layer that computes, and the one that is fetched ahead.
LAYERS_IN_HOST_MEMORY = 2


class Mode(StrEnum):
    """The goal of a plan.

    `up`: split every task down to the lightest. `down`: pack tasks up to the heaviest. `budget`: the smallest
    largest load on a number of GPUs.
    """

    UP = "up"
    DOWN = "down"
    BUDGET = "budget"


class Pinning(StrEnum):
    """Which layers stay on the device."""

    NONE = "none"
    SPREAD = "spread"


class Remedy(StrEnum):
    """What lets a rejected job meet its latency: nothing is needed, more GPUs, a shorter computation of a
    layer, or nothing helps."""

    NONE = "none"
    MORE_GPUS = "gpus"
    FASTER_COMPUTATION = "computation"
    REJECT = "reject"


class Tier(StrEnum):
    """A place of states. Ties between tiers are decided in this order."""

    GPU = "gpu"
    CPU = "cpu"
    SSD = "ssd"
