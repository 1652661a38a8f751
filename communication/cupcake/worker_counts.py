"""The curve over numbers of workers: the best plan of each placement, and what dense training takes there
(Cupcake 7)."""

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
    """One placement: the best plan there, and an iteration of dense training with the best bucket size."""

    plan: FusionPlan
    dense_seconds: float
    compute_seconds: float

    @property
    def workers(self) -> int:
        """Of the placement."""
        return self.plan.placement.workers

    @property
    def speedup(self) -> float:
        """Over dense training; at least 1, because fusing without a codec is among what is tried."""
        return self.dense_seconds / self.plan.predicted.iteration_seconds

    @property
    def scaling_factor(self) -> float:
        """An iteration on one GPU over one here: 1 where communication costs nothing."""
        return self.compute_seconds / self.plan.predicted.iteration_seconds

    def samples_per_second(self, samples_per_worker: float) -> float:
        """Of all workers, each of which has so many samples in an iteration."""
        return samples_per_worker * self.workers / self.plan.predicted.iteration_seconds


def fusion_curve(
    model: ModelProfile,
    placements: Iterable[PlacementShape],
    link: LinkProfile,
    codecs: Sequence[CodecProfile] = (),
    settings: ExchangeSettings | None = None,
) -> list[CurvePoint]:
    """A point for each placement. The share of the link is the same everywhere; a worker's samples too, so
    that the model's times are."""
    chosen = settings or ExchangeSettings()
    return [
        CurvePoint(
            plan_fusion(model, placement, link, codecs, chosen),
            fp32(Exchange(model, placement, link, None, chosen)).iteration_seconds,
            model.compute_seconds,
        )
        for placement in placements
    ]
