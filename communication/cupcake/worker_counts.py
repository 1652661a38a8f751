"""The best plan by number of workers, compared with dense training on each placement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from communication.cupcake.baselines import fp32
from communication.cupcake.exchange import Exchange, ExchangeSettings
from communication.cupcake.plan import FusionPlan, plan_fusion
from communication.profiles.codec import CodecProfile
from communication.profiles.link import LinkProfile
from communication.profiles.model import ModelProfile
from communication.profiles.placement import PlacementShape


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One placement: its best plan, and an iteration of dense training with the best bucket size."""

    plan: FusionPlan
    dense_seconds: float
    compute_seconds: float

    @property
    def workers(self) -> int:
        """Number of workers of the placement."""
        return self.plan.placement.workers

    @property
    def speedup(self) -> float:
        """Speedup over dense training; at least 1, because fusion without a codec is a candidate."""
        return self.dense_seconds / self.plan.predicted.iteration_seconds

    @property
    def scaling_factor(self) -> float:
        """Iteration time on one GPU divided by that of the plan: 1 if communication costs nothing."""
        return self.compute_seconds / self.plan.predicted.iteration_seconds

    def samples_per_second(self, samples_per_worker: float) -> float:
        """Return the throughput of all workers, with ``samples_per_worker`` samples each per iteration."""
        return samples_per_worker * self.workers / self.plan.predicted.iteration_seconds


def fusion_curve(
    model: ModelProfile,
    placements: Iterable[PlacementShape],
    link: LinkProfile,
    codecs: Sequence[CodecProfile] = (),
    settings: ExchangeSettings | None = None,
) -> list[CurvePoint]:
    """Return a point for each placement. All share the link's share, and the model's times, because each
    worker's number of samples is constant."""
    chosen = settings or ExchangeSettings()
    return [
        CurvePoint(
            plan_fusion(model, placement, link, codecs, chosen),
            fp32(Exchange(model, placement, link, None, chosen)).iteration_seconds,
            model.compute_seconds,
        )
        for placement in placements
    ]
