"""What workers measure of their gradients and of how these are exchanged (docs/protocols.md 2.8).

A profile is what plans are made from: it is told once for each number of GPUs. A window is what became of a
plan: it is told again and again, and the newest one counts.
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
    """A gradient. `gap_seconds`: of the backward pass, from the readiness of the one before it to its own."""

    name: TensorName
    elements: Elements
    gap_seconds: TrainSeconds


class SumDensity(Message):
    """The share of units that are not zero in the sum of so many workers' gradients."""

    workers: Annotated[int, Field(ge=2, le=limits.LARGEST_GPU_COUNT)]
    density: Share


class SparseTensor(Message):
    """A gradient that is mostly zeros.

    `width`: values for which one index stands, such as a row of a table. `density`, `sums`: the share of
    these that are not zero on one worker, and in sums of several, ascending. `beta`, `skew`: of the laws
    beyond what was measured (`communication/zen/densification.py`: `Densification`, `Skew.sigma`). `rows`:
    whether the gradient is kept as rows, as those of embeddings with `sparse=True` are.
    """

    name: TensorName
    width: Annotated[int, Field(ge=1, le=1 << 32)]
    density: Share
    beta: Share
    sums: Annotated[list[SumDensity], Field(max_length=8)] = []
    skew: Share
    rows: bool = True


class CodecTimes(Message):
    """What a codec takes on a worker's device for gradients of ascending sizes: one tensor, one payload."""

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
    """What a collective call takes on a link: so long, and what it receives over so many bytes per second."""

    latency_seconds: TrainSeconds
    bytes_per_second: Annotated[float, Field(gt=0, le=1e15, allow_inf_nan=False)]


class MeasuredLinks(Message):
    """`between` servers, of one server's network interface; `within` one, of a GPU. What these GPUs have not
    is left out."""

    between: LinkTimes | None = None
    within: LinkTimes | None = None


class ExpertTraffic(Message):
    """What layers with spread experts exchange and compute, as means of one of `layers`.

    `row_bytes`: that rank 0 gives to one all-to-all, of which a layer has two in each pass.
    `all_to_all_seconds`: of one of the forward pass. `backward_all_to_all_seconds`: of one of the backward
    pass, beside all-reduces. `expert_seconds`: of the forward pass of a rank's experts.
    """

    layers: Annotated[int, Field(ge=1, le=limits.MOE_LAYERS_OF_A_MODEL)]
    row_bytes: Annotated[float, Field(gt=0, le=1e15, allow_inf_nan=False)]
    all_to_all_seconds: TrainSeconds
    backward_all_to_all_seconds: TrainSeconds
    expert_seconds: TrainSeconds


class CommunicationProfile(Message):
    """What plans are made from, as rank 0 has measured it in the first iterations on so many GPUs.

    Attributes:
        iterations: over which times are medians and densities means. bytes_per_element: of a gradient.
        other_seconds: of an iteration beside the backward pass: forward pass, optimizer, data.
        tensors: all gradients, in order of readiness. sparse: those that are mostly zeros.
        codecs: those that were measured on this device. links: between these GPUs, while they were idle.
        experts: of a model whose experts are spread; None of every other one.
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
    """Of a sparse tensor, a worker's own gradient: the mean share of units that are not zero."""

    name: TensorName
    density: Share


class Span(Message):
    """What was done to a group of gradients, in seconds from the beginning of the backward pass.

    ``resource``: what it has occupied: a GPU, a server's processors, the links within or between servers.
    """

    stage: Literal["backward", "encode", "exchange", "decode"]
    resource: Literal["gpu", "processors", "within", "between"] = "gpu"
    group: Number
    begin_seconds: TrainSeconds
    end_seconds: TrainSeconds


class CommunicationWindow(Message):
    """What became of a plan in some iterations, as rank 0 has measured it; times and bytes are of one.

    Attributes:
        plan: digest of the runtime plan. iteration: the last of them.
        iteration_seconds: of each, one after the other.
        encode_seconds, exchange_seconds, decode_seconds: of all gradients, whether anyone waited or not.
            exposed_seconds: in which this rank waited after its last gradient was computed.
        received_bytes: by this rank. dense_bytes: that all-reduces would have brought it.
        push_imbalance, pull_imbalance: the fullest server over the mean, of all sparse tensors.
        residual_norm: of what error feedback keeps on this rank.
        densities: of the sparse tensors. spans: the last iteration's.
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
