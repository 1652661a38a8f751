"""A published setting on emulated devices and links: a model's shape, its times, and links on which training
without a plan scales as published.

Sizes of tensors, bandwidths and thresholds of codecs are divided by `DIVISOR`; times are unchanged. If a
machine is too slow for that, `slower` lengthens all times alike: gaps, codecs, and transfers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from communication.library.codecs import gpu_codec
from communication.library.models import measured_model
from communication.profiles.codec import CodecProfile
from communication.profiles.link import LinkProfile, LinkRate
from communication.profiles.model import ModelProfile
from communication.profiles.placement import PlacementShape
from communication.zen.iteration import dense_traffic

FUNCTIONS = Path(__file__).parent / "functions"
DIVISOR = 32
#: Seconds of a collective call among four, which is two steps of messages (Espresso).
CALL_SECONDS = 150e-6
#: Links are faster than needed by this share: dense training must not scale worse than published.
MARGIN = 0.03
Message = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """A published setting, with its scale here.

    Attributes:
        source, entry: of the training function. hyperparameters: without the batch.
        samples: samples of a batch, on each rank.
        model: tensors with the published gaps, and everything else of an iteration.
        codec: the one published for it; none if nothing may be lost.
        scaling: published scaling of training without a plan, over computing alone.
        planner: planner whose plan is compared. aim: least speed-up over dense.
    """

    name: str
    source: Path
    entry: str
    hyperparameters: Message
    samples: int
    model: ModelProfile
    codec: str | None
    scaling: float
    planner: str
    aim: float
    within_bytes_per_second: float = 1e9


@dataclass(frozen=True)
class Scene:
    """A setting on a number of servers and GPUs on each, where all times are `slower` times as long.

    ``link_factor``, ``codec_factor``: factors on the links' rate and on codecs' times, unknown to planners.
    ``scales_on``: placement on which training without a plan scales as published; None for this one.
    """

    setting: Setting
    placement: PlacementShape
    slower: float = 1.0
    link_factor: float = 1.0
    codec_factor: float = 1.0
    scales_on: PlacementShape | None = None
    #: Bytes per second of a server's network interface.
    network: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "network", _network(self.setting, self.scales_on or self.placement))

    @property
    def compute_seconds(self) -> float:
        """Computing time of an iteration on one device that sends nothing."""
        return self.slower * self.setting.model.compute_seconds

    @property
    def servers(self) -> list[int]:
        """Server of each rank."""
        each = self.placement.gpus_per_server
        return [rank // each for rank in range(self.placement.workers)]

    def assignment(self, seconds: float) -> Message:
        """Return the assignment of a measurement at the level of all ranks; its limit is much longer."""
        one = self.setting
        batch = one.samples * self.placement.workers
        return {
            "function": {"entry": one.entry},
            "hyperparameters": {**one.hyperparameters, "global_batch_size": batch},
            "purpose": "profiling",
            "profile": {
                "levels": [self.placement.workers],
                "seconds_per_level": seconds,
                "max_seconds": 30 * seconds + 120,
            },
            "device": {
                "kind": "emulated",
                "name": "emulated-gpu",
                "model": self._device(),
                "links": self._links(),
            },
            "places": {"servers": self.servers, "racks": [0] * self.placement.workers},
            "seed": 5,
        }

    def _device(self) -> Message:
        model = self.setting.model
        gaps = dict(zip(model.tensor_names, model.gap_seconds.tolist(), strict=True))
        return {
            "fixed_seconds": self.compute_seconds,
            "seconds_per_sample": 0.0,
            "forward_share": model.other_seconds / model.compute_seconds,
            "gradient_shares": gaps,
            "codecs": [] if self.setting.codec is None else [self._codec(self.setting.codec)],
        }

    def _codec(self, name: str) -> Message:
        """Return the published times, with the threshold divided like all sizes."""
        published, factor = gpu_codec(name), self.slower * self.codec_factor
        return {
            "codec": name,
            "device": published.device.value,
            "elements": scaled(published).elements.tolist(),
            "encode_seconds": (factor * published.encode_seconds).tolist(),
            "decode_seconds": (factor * published.decode_seconds).tolist(),
        }

    def _links(self) -> Message:
        step = self.slower * CALL_SECONDS / 2
        network = {
            "bytes_per_second": self.network * self.link_factor / self.slower,
            "latency_seconds": step,
        }
        within = {
            "bytes_per_second": self.setting.within_bytes_per_second / self.slower,
            "latency_seconds": step,
        }
        return {
            "network": network,
            "within_server": within,
            "spine": network,
            "host_to_device": {"bytes_per_second": 1e10},
            "disk": {"bytes_per_second": 1e10},
        }


def scaled(codec: CodecProfile) -> CodecProfile:
    """Return a codec whose thresholds are divided as sizes are."""
    return CodecProfile(
        codec.name,
        codec.device,
        codec.wire,
        np.maximum(1, codec.elements // DIVISOR),
        codec.encode_seconds,
        codec.decode_seconds,
        exact=codec.exact,
    )


def _network(setting: Setting, placement: PlacementShape) -> float:
    """Return the rate with which training without a plan scales as published, plus a margin. It sets links;
    the results on them are measured."""
    model = setting.model
    wanted = model.compute_seconds / setting.scaling
    low, high = 1e3, 1e12
    for _ in range(80):
        middle = (low * high) ** 0.5
        links = LinkProfile(
            LinkRate(CALL_SECONDS, middle), LinkRate(CALL_SECONDS, setting.within_bytes_per_second)
        )
        ended = dense_traffic(model, placement, links).end_seconds
        slow = model.other_seconds + max(model.backward_seconds, ended) > wanted
        low, high = (middle, high) if slow else (low, middle)
    return high * (1.0 + MARGIN)


def _shape(name: str, other_seconds: float) -> ModelProfile:
    measured = measured_model(name, other_seconds).with_elements_divided(DIVISOR)
    return ModelProfile(
        name,
        tuple(f"tensors.t{place:03d}" for place in range(len(measured))),
        measured.elements,
        measured.gap_seconds,
        other_seconds,
    )


def _fitted(
    name: str, other_seconds: float, *, codec: str, scaling: float, planner: str, aim: float, within: float
) -> Setting:
    model = _shape(name, other_seconds)
    return Setting(
        name,
        FUNCTIONS / "shape.py",
        "shape:Shape",
        {"elements": model.elements.tolist()},
        2,
        model,
        codec,
        scaling,
        planner,
        aim,
        within / DIVISOR,
    )


#: The published LSTM: 406 million parameters in its table and 20 million in layers.
_ITEMS, _WIDTH, _HIDDEN = 198_000, 64, 4800


def _popular() -> Setting:
    """Return the published LSTM's sizes, density and computing (Zen), as a recommender. Its
    table's gradient is the last one."""
    names = ("layers.2.bias", "layers.2.weight", "layers.0.bias", "layers.0.weight", "items.weight")
    elements = np.array([64, 64 * _HIDDEN, _HIDDEN, _WIDTH * _HIDDEN, _ITEMS * _WIDTH])
    backward = 0.204 * 2 / 3
    gaps = backward * np.array([0.0, 0.3, 0.0, 0.3, 0.4])
    return Setting(
        "recommender",
        FUNCTIONS / "popular.py",
        "popular:Popular",
        {"items": _ITEMS, "width": _WIDTH, "hidden": _HIDDEN, "seen": 60, "power": 3.0, "beyond": 2000.0},
        64,
        ModelProfile("recommender", names, elements, gaps, 0.204 / 3),
        None,
        0.204 / (0.204 + 1.022),
        "zen",
        2.5,
        1.2e12 / 8 / DIVISOR,
    )


#: By name. Time of an iteration besides the backward pass, and scaling without a plan: as
#: Espresso and Cupcake publish them (ResNet50 16 ms beside 32, in proportion to the profile's gaps).
SETTINGS = {
    each.name: each
    for each in (
        _popular(),
        _fitted(
            "VGG16",
            0.150 - 0.08531,
            codec="random-k",
            scaling=1 / 4.09,
            planner="espresso",
            aim=3.0,
            within=2.5e9,
        ),
        _fitted(
            "ResNet50",
            0.016 * 63.533 / 32,
            codec="random-k",
            scaling=0.46,
            planner="cupcake",
            aim=1.5,
            within=2.5e9,
        ),
        _fitted(
            "LSTM",
            0.239 - 0.07145,
            codec="ef-signsgd",
            scaling=0.46,
            planner="espresso",
            aim=1.0,
            within=2.5e9,
        ),
    )
}
