"""Time of MoE layers and of training steps relative to top-2, by two-expert share (Table 5.1; SIM-A)."""

from __future__ import annotations

from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

#: Measured times of an MoE layer relative to top-2, by two-expert share (Table 5.1).
MEASURED_SHARES = (0.0, 0.2, 0.5, 0.8, 1.0)
MEASURED_TIMES = (0.67, 0.76, 0.92, 0.97, 1.0)


class Waiting(StrEnum):
    """Whether a layer takes as long as its slowest rank, as in synchronous training, or as the mean rank."""

    SLOWEST = "slowest"
    MEAN = "mean"


def layer_time(two_expert_share: ArrayLike) -> NDArray[np.float64]:
    """Return the time of an MoE layer relative to top-2: linear between the measured times.

    Raises:
        ValueError: a share is not between 0 and 1.
    """
    shares = np.asarray(two_expert_share, np.float64)
    if not np.all((shares >= 0.0) & (shares <= 1.0)):
        raise ValueError("two_expert_share must lie between 0 and 1")
    return np.asarray(np.interp(shares, MEASURED_SHARES, MEASURED_TIMES))


def step_time(
    rank_shares: NDArray[np.float64], moe_share: float, waiting: Waiting = Waiting.SLOWEST
) -> NDArray[np.float64]:
    """Return the time of training steps relative to top-2.

    Args:
        rank_shares: [..., ranks, layers] two-expert share of each rank in each layer.
        moe_share: share of MoE layers in the step time under top-2.

    Raises:
        ValueError: a share is not between 0 and 1.
    """
    if not 0.0 <= moe_share <= 1.0:
        raise ValueError(f"moe_share is {moe_share}; it must lie between 0 and 1")
    times = layer_time(rank_shares)
    by_layer = times.max(axis=-2) if waiting is Waiting.SLOWEST else times.mean(axis=-2)
    return np.asarray(1.0 - moe_share + moe_share * by_layer.mean(axis=-1))


def implied_moe_share(step: float, layer: float) -> float:
    """Return the share of MoE layers at which a layer time of `layer` gives a step time of `step`.

    Raises:
        ValueError: `layer` is not below 1.
    """
    if layer >= 1.0:
        raise ValueError(f"the layer takes {layer} of top-2's time; it must take less than 1")
    return (1.0 - step) / (1.0 - layer)
