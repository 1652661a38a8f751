"""The published evaluation in numbers: workloads, platforms, codecs, and fitted values (4.6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from communication.espresso.costs import CostModel
from communication.espresso.options import Option, is_hierarchical
from communication.espresso.question import Question, question_of, single_device_options
from communication.library.codecs import cpu_codec, gpu_codec
from communication.library.models import measured_model
from communication.profiles.codec import Device
from communication.profiles.link import LinkProfile, LinkRate
from communication.profiles.model import ModelProfile
from communication.profiles.placement import PlacementShape

LATENCY_SECONDS = 150e-6
GPUS_PER_SERVER = 8
SERVERS = (1, 2, 4, 8)
NVLINK, PCIE = "NVLink, 100 Gbps", "PCIe, 25 Gbps"
BETWEEN_GBPS = {NVLINK: 20.0, PCIE: 20.0}
"""Effective rates between servers if none was fitted: the artifact's default."""
WITHIN_BYTES_PER_SECOND = {NVLINK: 50e9, PCIE: 2.5e9}


@dataclass(frozen=True, slots=True)
class Workload:
    """A model with its published setting.

    Attributes:
        one_gpu_seconds: an iteration on one GPU, read off the bars for 8 GPUs (fitted).
        between_gbps: effective bandwidth between servers, so that FP32 has the published scaling (fitted).
        cpu_gbps: FP32 input that a server's processors encode, or decode, per second.
    """

    model: str
    codec: str
    platform: str
    one_gpu_seconds: float
    between_gbps: float
    cpu_gbps: float = 16.0


WORKLOADS: dict[str, Workload] = {
    each.model: each
    for each in (
        Workload("BERT-base", "random-k", NVLINK, 0.275, 22.7),
        Workload("GPT2", "ef-signsgd", NVLINK, 0.445, 14.4),
        Workload("UGATIT", "dgc", NVLINK, 1.09, 17.7),
        Workload("VGG16", "random-k", PCIE, 0.15, 27.8),
        Workload("LSTM", "ef-signsgd", PCIE, 0.239, 26.4),
        Workload("ResNet101", "dgc", PCIE, 0.19, 64.0),
    )
}
"""The workloads of the throughput figure."""


def model_of(workload: Workload) -> ModelProfile:
    """Return its tensors, with the time of an iteration on one GPU besides the backward pass."""
    measured = measured_model(workload.model)
    return replace(measured, other_seconds=workload.one_gpu_seconds - measured.backward_seconds)


def question(workload: Workload, servers: int, *, flat: bool = False) -> Question:
    """Return the question of a workload on ``servers`` servers. ``flat``: whether all GPUs may exchange at
    once, which none of the published systems does."""
    codecs = {
        Device.GPU: gpu_codec(workload.codec),
        Device.CPU: cpu_codec(workload.codec, workload.cpu_gbps * 1e9),
    }
    links = LinkProfile(
        LinkRate(LATENCY_SECONDS, workload.between_gbps * 1e9 / 8),
        LinkRate(LATENCY_SECONDS, WITHIN_BYTES_PER_SECOND[workload.platform]),
    )
    costs = CostModel(PlacementShape(servers, GPUS_PER_SERVER), links, codecs)
    return question_of(model_of(workload), costs, _options(flat))


@cache
def _options(flat: bool) -> Sequence[Option]:
    among = single_device_options(tuple(Device))
    return among if flat else tuple(option for option in among if is_hierarchical(option))
