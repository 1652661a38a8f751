"""A serving worker's reports of its answered requests (docs/protocols.md 2.12).

All values except `waiting` only grow, so a lost report loses nothing.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from punctual.protocol import limits
from punctual.protocol.experts import Counts, Hosts, LayerName
from punctual.protocol.fields import Age, Count, JobId, Message, Number
from punctual.protocol.latencies import LATENCY_BUCKETS

Seconds = Annotated[float, Field(ge=0, le=limits.LONGEST_AGE_SECONDS, allow_inf_nan=False)]
Histogram = Annotated[list[Count], Field(max_length=LATENCY_BUCKETS)]


class ServedLayer(Message):
    """Experts of one mixture-of-experts layer of a group of servers, counted since the group began.

    Attributes:
        rows: rows by expert. expected: the same as estimated before the gate ran; 0 without estimate.
        hosts: ranks of the servers that have each expert now.
        passes: of the layer. estimated: those with an estimate. replaced: those of them whose experts were
            placed again, as the estimate was wrong.
        fullest_rows: rows of the fullest server, summed over passes. fullest_rows_evenly: the same if each
            expert had its one even place.
    """

    name: LayerName
    rows: Counts
    expected: Annotated[list[Seconds], Field(max_length=limits.EXPERTS_OF_A_LAYER)]
    hosts: Annotated[list[Hosts], Field(max_length=limits.EXPERTS_OF_A_LAYER)]
    passes: Count
    estimated: Count
    replaced: Count
    fullest_rows: Count
    fullest_rows_evenly: Count

    @model_validator(mode="after")
    def _check_experts(self) -> Self:
        if not len(self.rows) == len(self.expected) == len(self.hosts):
            raise ValueError("rows, expected and hosts must have an item for each expert")
        return self


class ExpertCounts(Message):
    """A group of servers' use of the experts of its model.

    Attributes:
        layers: in the order of the model. layers_left_out: number of layers that do not fit the report.
        swaps: experts that this server loaded from host memory. swap_seconds: time that this took.
        waited_seconds: part of it in which a batch waited.
    """

    layers: Annotated[list[ServedLayer], Field(max_length=limits.MOE_LAYERS_OF_A_MODEL)]
    layers_left_out: Number = 0
    swaps: Count = 0
    swap_seconds: Seconds = 0.0
    waited_seconds: Seconds = 0.0


class RingCounts(Message):
    """A replica some of whose layers stream from host memory to the device (MoESys).

    Attributes:
        layers: that a pass computes. sections: layers that the device holds; all but two of them stay.
        section_bytes: the largest layer. other_bytes: weights that are no part of a layer.
        calls: of `predict`, that computed layers. entered: layers that they computed.
        loads: layers that were copied to the device. copy_seconds: time of these copies.
        stall_seconds: time in which computation waited for copies. compute_seconds: the rest of the calls.
        unexpected: layers that were computed out of order, and so were not copied ahead.
    """

    layers: Annotated[int, Field(ge=3, le=limits.LARGEST_NUMBER)]
    sections: Annotated[int, Field(ge=2, le=limits.LARGEST_NUMBER)]
    section_bytes: Annotated[int, Field(ge=1, le=limits.LARGEST_COUNT)]
    other_bytes: Count
    calls: Count = 0
    entered: Count = 0
    loads: Annotated[int, Field(ge=1, le=limits.LARGEST_COUNT)]
    copy_seconds: Seconds
    stall_seconds: Seconds = 0.0
    compute_seconds: Seconds = 0.0
    unexpected: Count = 0

    @model_validator(mode="after")
    def _check_sections(self) -> Self:
        if self.sections >= self.layers:
            raise ValueError("a ring has fewer sections than layers")
        return self


class ServingCounts(Message):
    """Counts of one serving worker since it started.

    Attributes:
        requests: HTTP requests that reached `predict` and were answered, failed ones included.
        inputs: inputs of these requests.
        failed: requests answered with a 5xx because `predict` failed.
        refused: requests answered with a 503 because the queue was full.
        rejected: requests answered with a 4xx because their body or an input was wrong.
        batches: calls of `predict`. busy_seconds: time within these calls.
        uptime_seconds: time since the worker started to serve.
        waiting: requests in the queue now.
        latencies: requests by bucket of `latencies.LATENCY_BOUNDS`, from the last byte read to the answer.
        experts: of a group of servers, rank 0 alone; None elsewhere.
        ring: of a replica whose layers stream from host memory; None elsewhere.
    """

    requests: Count = 0
    inputs: Count = 0
    failed: Count = 0
    refused: Count = 0
    rejected: Count = 0
    batches: Count = 0
    busy_seconds: Seconds = 0.0
    uptime_seconds: Seconds = 0.0
    waiting: Number = 0
    latencies: Histogram = []
    experts: ExpertCounts | None = None
    ring: RingCounts | None = None


class ServingEntry(ServingCounts):
    """The counts of one worker as its agent reports them."""

    job: JobId
    generation: Number
    rank: Number = 0
    age_seconds: Age = 0.0
