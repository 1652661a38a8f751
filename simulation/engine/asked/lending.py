"""Settings of a run's inference cluster and of the loans from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lending.core.lending_rule import HEADROOM_FRACTION
from lending.forecasting.registry import FORECASTERS, NO_FORECASTER
from scheduling.core.lyra.reclaiming.methods import ReclaimMethod, ReclaimRules
from scheduling.core.question.options import option, share

if TYPE_CHECKING:
    from simulation.inference.usage import UsageSeries

USUAL_GPU_TYPE = "T4"
"""GPU type of inference servers by default."""


@dataclass(frozen=True, slots=True)
class Lending(ReclaimRules):
    """An inference cluster beside the training cluster, and how its idle servers are lent.

    ``usage``: share of its GPUs in use over time. ``hysteresis`` and ``hold_seconds`` are 0 as published
    (`LendingRule.decide`). ``inference_gpu_type``: GPU type of its servers.
    """

    servers: int
    usage: UsageSeries
    reclaim: ReclaimMethod = option(ReclaimMethod.LYRA, "how the servers to return are chosen")
    headroom: float = share(HEADROOM_FRACTION, "share of its servers that is never lent")
    forecast_margin: float = share(0.0, "share of the cluster added to each forecast")
    hysteresis: float = share(
        0.0, "lend a server only if usage could rise by this share before it had to be reclaimed",
        offered_as="lending_hysteresis",
    )  # fmt: skip
    hold_seconds: float = option(
        0.0, "least time that a server stays where it is", offered_as="lending_hold_seconds"
    )
    forecaster: str = option(
        "persistence", "the forecaster of its usage", words=(*FORECASTERS, NO_FORECASTER)
    )
    period_seconds: float = option(
        300.0,
        "time between two runs of the lending rule",
        offered_as="orchestrator_seconds",
        above_least=True,
    )
    inference_gpu_type: str = USUAL_GPU_TYPE
