"""Workers' measurements of their gradients and exchanges (docs/protocols.md 2.8).

A profile is the input of plans: it is sent once for each number of GPUs. A window measures the execution of a
plan: it is sent repeatedly, and the newest one counts.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from punctual.protocol import limits
from punctual.protocol.fields import Count, GpuCount, Label, Message, Number, TensorName, TrainSeconds

MOST_CODECS = 16
MOST_CODEC_SIZES = 16

Elements = Annotated[int, Field(ge=0, le=1 << 48)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Imbalance = Annotated[float, Field(ge=1, le=limits.LARGEST_GPU_COUNT, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, le=1e30, allow_inf_nan=False)]


class TensorTime(Message):
    """A gradient. `gap_seconds`: backward time from the previous gradient's readiness to its own."""

    name: TensorName
    elements: Elements
    gap_seconds: TrainSeconds


class SumDensity(Message):
    """The share of non-zero units in the sum of `workers` workers' gradients."""

    workers: Annotated[int, Field(ge=2, le=limits.LARGEST_GPU_COUNT)]
    density: Share


class SparseTensor(Message):
    """A gradient that is mostly zeros.

    `width`: values that share one index, such as a row of a table. `density`, `sums`: the share of non-zero
    units on one worker, and in sums of several, ascending. `beta`, `skew`: of the laws beyond the
    measurements (`communication/zen/densification.py`: `Densification`, `Skew.sigma`). `rows`: whether the
    gradient is kept as rows, as those of embeddings with `sparse=True`.
    """

    name: TensorName
    width: Annotated[int, Field(ge=1, le=1 << 32)]
    density: Share
    beta: Share
    sums: Annotated[list[SumDensity], Field(max_length=8)] = []
    skew: Share
    rows: bool = True


class CodecTimes(Message):
    """Times of a codec on a worker's device for gradients of ascending sizes: one tensor, one payload."""

    codec: Annotated[Label, Field(min_length=1)]
    device: Literal["gpu", "cpu"]
    elements: Annotated[list[Elements], Field(min_length=1, max_length=MOST_CODEC_SIZES)]
    encode_seconds: Annotated[list[TrainSeconds], Field(max_length=MOST_CODEC_SIZES)]
    decode_seconds: Annotated[list[TrainSeconds], Field(max_length=MOST_CODEC_SIZES)]

    @model_validator(mode="after")
    def _is_a_table(self) -> Self:
        if not len(self.elements) == len(self.encode_seconds) == len(self.decode_seconds):
            raise ValueError("there is a time to encode and one to decode for each size")
        if self.elements[0] < 1 or any(
            low >= high for low, high in zip(self.elements, self.elements[1:], strict=False)
        ):
            raise ValueError("sizes ascend, and none is 0")
        return self


class LinkTimes(Message):
    """The cost of a collective call on a link: latency, and the rate of received bytes."""

    latency_seconds: TrainSeconds
    bytes_per_second: Annotated[float, Field(gt=0, le=1e15, allow_inf_nan=False)]


class MeasuredLinks(Message):
    """`between` servers: of one server's network interface; `within` a server: of a GPU. None if the GPUs
    have no such link."""

    between: LinkTimes | None = None
    within: LinkTimes | None = None


class ExpertTraffic(Message):
    """Traffic and compute times of layers with spread experts, as means over `layers`.

    `row_bytes`: that rank 0 sends in one all-to-all, of which a layer has two in each pass.
    `all_to_all_seconds`: of one in the forward pass. `backward_all_to_all_seconds`: of one in the backward
    pass, beside all-reduces. `expert_seconds`: of the forward pass of a rank's experts.
    """

    layers: Annotated[int, Field(ge=1, le=limits.MOE_LAYERS_OF_A_MODEL)]
    row_bytes: Annotated[float, Field(gt=0, le=1e15, allow_inf_nan=False)]
    all_to_all_seconds: TrainSeconds
    backward_all_to_all_seconds: TrainSeconds
    expert_seconds: TrainSeconds


class CommunicationProfile(Message):
    """The input of plans, measured by rank 0 in the first iterations on a number of GPUs.

    Attributes:
        iterations: over which times are medians and densities means.
        bytes_per_element: of most elements; 8 if a gradient cannot be sent as FP32.
        other_seconds: of an iteration outside the backward pass: forward pass, optimizer, data.
        tensors: all gradients, in order of readiness. sparse: those that are mostly zeros.
        codecs: those measured on this device. links: between these GPUs, measured while idle.
        experts: of a model with spread experts, else None.
    """

    gpus: GpuCount
    iterations: Annotated[int, Field(ge=1, le=1000)]
    bytes_per_element: Literal[1, 2, 4, 8] = 4
    other_seconds: TrainSeconds
    tensors: Annotated[list[TensorTime], Field(min_length=1, max_length=limits.TENSORS_OF_A_MODEL)]
    sparse: Annotated[list[SparseTensor], Field(max_length=limits.SPARSE_TENSORS_OF_A_MODEL)] = []
    codecs: Annotated[list[CodecTimes], Field(max_length=MOST_CODECS)] = []
    links: MeasuredLinks = MeasuredLinks()
    experts: ExpertTraffic | None = None

    @model_validator(mode="after")
    def _names_are_clear(self) -> Self:
        elements = {each.name: each.elements for each in self.tensors}
        if len(elements) < len(self.tensors):
            raise ValueError("two tensors have one name")
        if len({each.name for each in self.sparse}) < len(self.sparse):
            raise ValueError("a sparse tensor is told twice")
        for each in self.sparse:
            if elements.get(each.name, 1) % each.width or each.name not in elements:
                raise ValueError(f"there is no tensor {each.name!a:.100} in rows of {each.width}")
        return self


class TensorDensity(Message):
    """The mean share of non-zero units in a worker's own gradient of a sparse tensor."""

    name: TensorName
    density: Share


class Span(Message):
    """One stage of a group of gradients, in seconds from the beginning of the backward pass.

    ``resource``: that it occupied: a GPU, a server's processors, the links within or between servers.
    """

    stage: Literal["backward", "encode", "exchange", "decode"]
    resource: Literal["gpu", "processors", "within", "between"] = "gpu"
    group: Number
    begin_seconds: TrainSeconds
    end_seconds: TrainSeconds


class CommunicationWindow(Message):
    """The execution of a plan in some iterations, measured by rank 0; times and bytes are of one iteration.

    Attributes:
        plan: digest of the runtime plan. iteration: the last of them.
        iteration_seconds: of each, in order.
        encode_seconds, exchange_seconds, decode_seconds: of all gradients, whether or not anything waited.
            exposed_seconds: waits of this rank after its last gradient was computed.
        received_bytes: by this rank. dense_bytes: that all-reduces would have received.
        push_imbalance, pull_imbalance: the fullest server over the mean, over all sparse tensors.
        residual_norm: of this rank's residuals.
        densities: of the sparse tensors. spans: of the last iteration.
    """

    plan: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    iteration: Count
    iteration_seconds: Annotated[
        list[TrainSeconds], Field(min_length=1, max_length=limits.ITERATIONS_OF_A_WINDOW)
    ]
    encode_seconds: TrainSeconds = 0.0
    exchange_seconds: TrainSeconds = 0.0
    decode_seconds: TrainSeconds = 0.0
    exposed_seconds: TrainSeconds = 0.0
    received_bytes: Count = 0
    dense_bytes: Count = 0
    push_imbalance: Imbalance = 1.0
    pull_imbalance: Imbalance = 1.0
    residual_norm: NotNegative = 0.0
    densities: Annotated[list[TensorDensity], Field(max_length=limits.SPARSE_TENSORS_OF_A_MODEL)] = []
    spans: Annotated[list[Span], Field(max_length=limits.SPANS_OF_A_WINDOW)] = []
