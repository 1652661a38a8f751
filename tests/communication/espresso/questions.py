"""The published workloads as questions: six models on two platforms, on any number of servers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from communication.espresso.costs import CostModel
from communication.espresso.question import Question, question_of
from communication.library.codecs import cpu_codec, gpu_codec
from communication.library.models import measured_model
from communication.profiles.codec import CodecProfile, Device
from communication.profiles.link import LinkProfile, LinkRate
from communication.profiles.placement import PlacementShape

LATENCY_SECONDS = 150e-6
NVLINK = LinkProfile(LinkRate(LATENCY_SECONDS, 100e9 / 8), LinkRate(LATENCY_SECONDS, 50e9))
PCIE = LinkProfile(LinkRate(LATENCY_SECONDS, 25e9 / 8), LinkRate(LATENCY_SECONDS, 2.5e9))
PLATFORMS = {"NVLink and 100 Gbps": NVLINK, "PCIe and 25 Gbps": PCIE}


@dataclass(frozen=True)
class Workload:
    """A model with the codec of the published figures. ``one_gpu_seconds``: an iteration on one GPU."""

    model: str
    codec: str
    one_gpu_seconds: float


WORKLOADS = (
    Workload("BERT-base", "random-k", 0.275),
    Workload("GPT2", "ef-signsgd", 0.445),
    Workload("UGATIT", "dgc", 1.09),
    Workload("VGG16", "random-k", 0.15),
    Workload("LSTM", "ef-signsgd", 0.239),
    Workload("ResNet101", "dgc", 0.19),
)


def codecs_of(name: str) -> dict[Device, CodecProfile]:
    """Return one codec on GPUs and on CPUs, as published."""
    return {Device.GPU: gpu_codec(name), Device.CPU: cpu_codec(name)}


def question_for(workload: Workload, links: LinkProfile, shape: PlacementShape) -> Question:
    """Return a workload's question with all options on one device."""
    model = measured_model(workload.model)
    model = replace(model, other_seconds=workload.one_gpu_seconds - model.backward_seconds)
    return question_of(model, CostModel(shape, links, codecs_of(workload.codec)))
