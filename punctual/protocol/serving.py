"""What a serving worker reports of the requests that it answered (docs/protocols.md 2.12).

All values but `waiting` only grow, so a lost report loses nothing.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from punctual.protocol import limits
from punctual.protocol.fields import Age, Count, JobId, Message, Number
from punctual.protocol.latencies import LATENCY_BUCKETS

Seconds = Annotated[float, Field(ge=0, le=limits.LONGEST_AGE_SECONDS, allow_inf_nan=False)]
Histogram = Annotated[list[Count], Field(max_length=LATENCY_BUCKETS)]


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


class ServingEntry(ServingCounts):
    """The counts of one worker as its agent reports them."""

    job: JobId
    generation: Number
    rank: Number = 0
    age_seconds: Age = 0.0
