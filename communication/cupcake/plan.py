"""The fusion plan: which consecutive gradients are sent together, with which codec, and its prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from communication.cupcake.baselines import fused_without_search
from communication.cupcake.exchange import Exchange, ExchangeSettings
from communication.cupcake.merging import merged_neighbours
from communication.cupcake.pareto_program import best_fusion
from communication.cupcake.partitions import Boundaries
from communication.cupcake.timeline import timeline_of
from communication.library.codec_names import KEEPS_MOMENTUM
from communication.plan import Prediction, content_digest
from communication.profiles.codec import CodecProfile, Device
from communication.profiles.link import LinkProfile
from communication.profiles.model import ModelProfile
from communication.profiles.placement import PlacementShape

#: The codec of gradients that are sent uncompressed.
NO_CODEC = "none"
_SETTINGS = ExchangeSettings()


@dataclass(frozen=True)
class FusionPlan:
    """Groups of consecutive gradients, each encoded and sent as one.

    Attributes:
        codec, device: the codec of all groups and where it runs; `NO_CODEC` for uncompressed all-reduces.
            lossless: whether gradients arrive as computed.
        boundaries: for each group one more than its last tensor, in order of readiness.
        layout: digest of the names and sizes of these tensors. placement: for which the plan is best.
        predicted: time of an iteration.
        buffer_bytes: of device memory on each GPU. exact: whether no other partition is faster.
    """

    codec: str
    device: Device
    lossless: bool
    boundaries: Boundaries
    layout: str
    placement: PlacementShape
    predicted: Prediction
    buffer_bytes: int
    exact: bool = True

    @property
    def planner(self) -> str:
        """Name of the planner."""
        return "cupcake"

    @property
    def digest(self) -> str:
        """SHA-256 of what ranks execute."""
        return content_digest(self._content())

    def to_message(self) -> dict[str, Any]:
        """Return the message that ranks execute, with its digest."""
        return {**self._content(), "digest": self.digest}

    def _content(self) -> dict[str, Any]:
        return {
            "planner": self.planner,
            "codec": self.codec,
            "device": self.device.value,
            "boundaries": list(self.boundaries),
            "layout": self.layout,
            "servers": self.placement.servers,
            "gpus_per_server": self.placement.gpus_per_server,
        }


def plan_fusion(
    model: ModelProfile,
    placement: PlacementShape,
    link: LinkProfile,
    codecs: Sequence[CodecProfile] = (),
    settings: ExchangeSettings = _SETTINGS,
) -> FusionPlan:
    """Return the fastest plan: the best partition with each allowed codec, and without any.

    Without a codec it is the best fusion of all-reduces, which no bucket size beats. Ties go to the plan
    without a codec, then to the order of ``codecs``.
    """
    plans = [
        plan_under(Exchange(model, placement, link, codec, settings))
        for codec in (None, *(codec for codec in codecs if codec.name != NO_CODEC))
    ]
    return min(plans, key=lambda plan: plan.predicted.iteration_seconds)


def plan_under(exchange: Exchange) -> FusionPlan:
    """Return the best plan with one codec.

    Models with too many tensors for the exact program are fused from merged neighbours. Their plan is still
    no slower than any partition of `fused_without_search`.
    """
    problem, codec, model = exchange.problem(), exchange.codec, exchange.model
    merged, ends = merged_neighbours(problem)
    boundaries = tuple(ends[one - 1] for one in best_fusion(merged).boundaries)
    exact = merged is problem
    if not exact:
        tried = [boundaries, *(one.boundaries for one in fused_without_search(problem))]
        boundaries = min(tried, key=lambda one: timeline_of(problem, one).iteration_seconds)
    return FusionPlan(
        codec=NO_CODEC if codec is None else codec.name,
        device=Device.GPU if codec is None else codec.device,
        lossless=codec is None or codec.exact,
        boundaries=boundaries,
        layout=model.layout,
        placement=exchange.placement,
        predicted=_prediction(exchange, boundaries),
        buffer_bytes=_buffer_bytes(exchange, boundaries),
        exact=exact,
    )


def _prediction(exchange: Exchange, boundaries: Boundaries) -> Prediction:
    problem = exchange.problem()
    timeline = timeline_of(problem, boundaries)
    sizes = np.diff(problem.bytes_until[[0, *boundaries]])
    coding = float(exchange.coding_seconds(sizes).sum())
    on_host = exchange.codec is not None and exchange.codec.device is Device.CPU
    spread = exchange.placement.spread
    return Prediction(
        iteration_seconds=timeline.iteration_seconds,
        bytes_between=float(exchange.received_bytes(sizes).sum()) if spread else 0.0,
        bytes_within=float(exchange.received_within(sizes).sum()),
        device_seconds=0.0 if on_host else coding,
        host_seconds=coding * exchange.placement.gpus_per_server if on_host else 0.0,
        exposed_seconds=timeline.exposed_seconds,
    )


def _buffer_bytes(exchange: Exchange, boundaries: Boundaries) -> int:
    """Return the size of a flat buffer of all gradients; for a lossy codec plus residuals, momentum if it
    keeps one, and the payloads of all participants."""
    codec = exchange.codec
    flat = int(exchange.model.sizes_bytes.sum())
    if codec is None:
        return flat
    copies = 1 + (not codec.exact) + (codec.name in KEEPS_MOMENTUM)
    sizes = np.diff(exchange.problem().bytes_until[[0, *boundaries]])
    return copies * flat + exchange.participants * int(exchange.payload_bytes(sizes).sum())
