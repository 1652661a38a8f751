"""The published evaluation in numbers: models, servers, codecs, and times of each way to send (4.1, 4.3)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from communication.cupcake.baselines import baselines
from communication.cupcake.exchange import Exchange, ExchangeSettings
from communication.cupcake.plan import plan_under
from communication.library.codecs import gpu_codec
from communication.library.models import measured_model
from communication.profiles.link import LinkProfile, LinkRate
from communication.profiles.model import ModelProfile
from communication.profiles.placement import PlacementShape

CODECS = ("random-k", "dgc", "ef-signsgd", "onebit")
CUPCAKE = "Cupcake"
#: Seconds of the backward pass and of all else: not published; assumed.
_TIMES = {"ResNet50": (0.032, 0.016), "ResNet101": (0.120, 0.064), "BERT-base": (0.130, 0.130)}
LATENCY_SECONDS = 150e-6
#: Fitted so that ResNet50 without compression scales as published on eight GPUs.
PCIE_BYTES_PER_SECOND = 2.2e9
#: Of 25 Gbps, fitted to the published ratio of Cupcake over FP32 for ResNet50 on eight servers.
NETWORK_BYTES_PER_SECOND = 2.46e9
NVLINK = LinkRate(20e-6, 50e9)
#: Time of a framework to launch a collective, in the variants that charge for it.
CALL_SECONDS = 150e-6


@dataclass(frozen=True)
class Setup:
    """Servers and their links. ``name``: name of its figure."""

    name: str
    title: str
    placement: PlacementShape
    link: LinkProfile


ONE_SERVER = Setup(
    "one_server",
    "One server, 8 V100 on PCIe",
    PlacementShape(1, 8),
    LinkProfile(
        LinkRate(LATENCY_SECONDS, NETWORK_BYTES_PER_SECOND), LinkRate(LATENCY_SECONDS, PCIE_BYTES_PER_SECOND)
    ),
)
EIGHT_SERVERS = Setup(
    "eight_servers",
    "Eight servers of 8 V100 with NVLink, 25 Gbps between them",
    PlacementShape(8, 8),
    LinkProfile(LinkRate(LATENCY_SECONDS, NETWORK_BYTES_PER_SECOND), NVLINK),
)
#: What the text leaves open: the simulator's model, and variants with what it omits.
PUBLISHED_MODEL = ExchangeSettings(decode_per_payload=False)
VARIANTS = {
    "as published": PUBLISHED_MODEL,
    "0.15 ms for a call": ExchangeSettings(decode_per_payload=False, host_seconds_per_call=CALL_SECONDS),
    "every payload decoded": ExchangeSettings(),
    "both": ExchangeSettings(host_seconds_per_call=CALL_SECONDS),
}


@dataclass(frozen=True)
class Evaluation:
    """Iteration times in seconds of one model under one codec, by the way in which gradients are sent.

    ``groups``: number of groups in Cupcake's plan.
    """

    compute_seconds: float
    seconds: dict[str, float]
    groups: int

    def scaling(self, name: str) -> float:
        """Return the scaling factor: an iteration on one GPU over one here."""
        return self.compute_seconds / self.seconds[name]

    def over(self, name: str) -> float:
        """Return how many times as fast Cupcake is."""
        return self.seconds[name] / self.seconds[CUPCAKE]


@cache
def profile(name: str) -> ModelProfile:
    """Return the measured tensors at the speed of the evaluation's GPUs."""
    return measured_model(name).with_times(*_TIMES[name])


def exchange(setup: Setup, model: str, codec: str, settings: ExchangeSettings = PUBLISHED_MODEL) -> Exchange:
    """Return one cell of the evaluation."""
    return Exchange(profile(model), setup.placement, setup.link, gpu_codec(codec), settings)


@cache
def evaluated(
    setup: Setup, model: str, codec: str, settings: ExchangeSettings = PUBLISHED_MODEL
) -> Evaluation:
    """Evaluate Cupcake and all baselines."""
    cell = exchange(setup, model, codec, settings)
    plan = plan_under(cell)
    seconds = {name: one.iteration_seconds for name, one in baselines(cell).items()}
    seconds[CUPCAKE] = plan.predicted.iteration_seconds
    return Evaluation(cell.model.compute_seconds, seconds, len(plan.boundaries))


def largest(setup: Setup, model: str, name: str, settings: ExchangeSettings = PUBLISHED_MODEL) -> float:
    """Return Cupcake's largest advantage over a baseline, over all codecs."""
    return max(evaluated(setup, model, codec, settings).over(name) for codec in CODECS)
