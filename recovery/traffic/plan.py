"""The plan of a job's recovery points: when copies are sent and how often points are made. Pure.

Copies go into the idle spans of the iterations between two points (`partition.py`). If those of one iteration
are too short, copies are either spread over the spans of several iterations, or one iteration is lengthened;
the cheaper of the two is chosen (`costs/frequency.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from recovery.costs.frequency import points_every, share_of_time
from recovery.traffic.idle_spans import IdleProfile
from recovery.traffic.link import Link, SubBuffers
from recovery.traffic.partition import USABLE_SHARE, Chunk, partition

#: Copies are spread over at most this many iterations; beyond that the iteration is lengthened.
MOST_ITERATIONS = 64
#: Iterations between points when nothing calls for points.
RAREST_EVERY = 1_000_000


@dataclass(frozen=True, slots=True)
class CopyTask:
    """The traffic of one point, and its link.

    Attributes:
        bytes: of one replica. replicas: including the local one. delay_seconds: from the point until its
            first byte can be sent (checksums, connections). spans_before_vote: the profile's spans in an
            iteration before ranks vote on the next point; the last point must be complete by then.
    """

    bytes: int
    replicas: int
    link: Link
    buffers: SubBuffers
    delay_seconds: float = 0.0
    spans_before_vote: int = 1


@dataclass(frozen=True, slots=True)
class PlannedSpan:
    """An idle span in use: the index of its gap, its length, and the most bytes sent in it."""

    #: Index of the gap.
    place: int
    #: Length of the span.
    seconds: float
    #: Most bytes sent in it.
    bytes: int


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """The schedule of a job's copies.

    Attributes:
        every: iterations from one point to the next. iterations: over which a point's copies are spread.
        spans: idle spans that may carry copies, in order of an iteration.
        chunks: what is sent; `span` counts the spans of all these iterations. extension_seconds: time that
            they add, once in `every` iterations. idle_seconds: all spans of one iteration together.
            copy_seconds: network time of one point.
    """

    every: int
    iterations: int
    spans: tuple[PlannedSpan, ...]
    chunks: tuple[Chunk, ...]
    extension_seconds: float
    idle_seconds: float
    copy_seconds: float

    @property
    def overflows(self) -> bool:
        """Whether some chunk fits no idle span."""
        return self.extension_seconds > 0.0


def plan_copies(
    profile: IdleProfile,
    task: CopyTask,
    failures_per_second: float,
    *,
    cost_seconds: float = 0.0,
    most_share: float = 0.02,
    worth_every: int | None = None,
    most_every: int | None = None,
    usable_share: float = USABLE_SHARE,
) -> CopyPlan:
    """Return the cheapest schedule for the copies of a job's points in the measured idle time.

    Args:
        failures_per_second: of the job's servers. cost_seconds: measured time that a point adds to its
            iterations beyond the plan. most_share: largest share of time by which points may lengthen
            iterations. worth_every: points rarer than this are worthless; only most_share makes them rarer.
            most_every: upper limit of `every`, whatever the cost.

    Raises ValueError for what `partition` and `points_every` refuse.
    """
    link, iteration_seconds = task.link, profile.iteration_seconds
    spans = tuple(
        PlannedSpan(span.place, span.seconds, bytes_in_span(span.seconds, link, task.buffers, usable_share))
        for span in profile.spans
    )
    seconds = [span.seconds for span in profile.spans]

    def best_every(extension_seconds: float, at_least: int) -> int:
        affordable = ceil((cost_seconds + extension_seconds) / (most_share * iteration_seconds))
        wanted = RAREST_EVERY  # a point gains nothing
        if extension_seconds == 0.0 or failures_per_second > 0.0:
            wanted = points_every(extension_seconds, iteration_seconds, failures_per_second)
        wanted = min(wanted, worth_every or RAREST_EVERY)
        return min(most_every or RAREST_EVERY, max(at_least, affordable, wanted))

    def share(every: int, extension_seconds: float) -> float:
        return share_of_time(every, extension_seconds, iteration_seconds, failures_per_second)

    lengthened = partition(
        _later(seconds, task.delay_seconds), task.bytes, task.replicas, link, task.buffers, usable_share
    )
    # A copy that fits an iteration but not the time before the next vote waits for the vote after it.
    extension = lengthened.extension_seconds
    chunks, iterations, every = lengthened.chunks, 1, best_every(extension, 1 if extension else 2)
    spread = _spread(seconds, task, min(MOST_ITERATIONS, most_every or MOST_ITERATIONS), usable_share)
    if spread is not None:
        spread_chunks, over = spread
        spread_every = best_every(0.0, over)
        if share(spread_every, 0.0) <= share(every, extension):
            chunks, iterations, every, extension = spread_chunks, over, spread_every, 0.0
    return CopyPlan(
        every,
        iterations,
        spans,
        chunks,
        extension,
        profile.idle_seconds,
        sum(link.seconds(chunk.size) for chunk in chunks),
    )


def bytes_in_span(seconds: float, link: Link, buffers: SubBuffers, usable_share: float = USABLE_SHARE) -> int:
    """Return the most bytes sent in an idle span, in chunks as `partition` cuts them."""
    usable = usable_share * seconds
    whole = int(usable // link.seconds(buffers.chunk_bytes))
    rest = link.bytes_in(usable - whole * link.seconds(buffers.chunk_bytes))
    return whole * buffers.chunk_bytes + min(rest, buffers.chunk_bytes)


def _spread(
    seconds: Sequence[float], task: CopyTask, most_iterations: int, usable_share: float
) -> tuple[tuple[Chunk, ...], int] | None:
    """Return the chunks over the fewest iterations whose spans carry all of them before a vote; None if no
    number suffices."""
    for iterations in range(1, most_iterations + 1):
        cycle = [*seconds] * (iterations - 1) + [*seconds[: task.spans_before_vote]]
        if not cycle:
            continue
        cycle = _later(cycle, task.delay_seconds)
        found = partition(cycle, task.bytes, task.replicas, task.link, task.buffers, usable_share)
        in_last = sum(task.link.seconds(one.size) for one in found.chunks if one.span == len(cycle) - 1)
        if in_last <= usable_share * cycle[-1]:
            return found.chunks, iterations
        if iterations > 1 and not any(one.span < len(cycle) - 1 for one in found.chunks):
            return None  # no span carries anything
    return None


def _later(seconds: Sequence[float], delay_seconds: float) -> list[float]:
    """Return the spans shortened at their beginning by ``delay_seconds`` in total."""
    left, found = delay_seconds, []
    for one in seconds:
        lost = min(one, left)
        left -= lost
        found.append(one - lost)
    return found
