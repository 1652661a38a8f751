"""Idle spans of a job's iterations: times without training traffic on the network (Gemini 6.3).

Iterations are stamped without checkpoint traffic. A span's length is the minimum over the iterations after
the warm-up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

#: Iterations excluded at the beginning, while memory is allocated and connections are made.
WARM_UP_ITERATIONS = 8
#: Spans below the threshold are too short for a transfer.
LEAST_SPAN_SECONDS = 0.010
STARTUPS_PER_SPAN = 5.0


@dataclass(frozen=True, slots=True)
class StampedIteration:
    """Begin and end of one iteration and of each of its transfers, in order, by any clock."""

    #: Seconds, by any clock.
    began: float
    #: Seconds, by the same clock.
    ended: float
    #: (begin, end) of each transfer, in order, by the same clock.
    transfers: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class IdleSpan:
    """A time without training traffic. ``place``: index of the gap; gap 0 precedes the first transfer."""

    place: int
    #: Length of the span.
    seconds: float


@dataclass(frozen=True, slots=True)
class IdleProfile:
    """The idle spans of an iteration, in order. The last one is included however short it is.

    ``iteration_seconds``: mean. ``deviation``: largest relative range of a gap's length over the iterations.
    """

    spans: tuple[IdleSpan, ...]
    iteration_seconds: float
    deviation: float

    @property
    def idle_seconds(self) -> float:
        """Total of all spans."""
        return sum(span.seconds for span in self.spans)


def threshold_seconds(startup_seconds: float) -> float:
    """Return the shortest usable span: below it, a transfer's startup would take too large a part."""
    return max(STARTUPS_PER_SPAN * startup_seconds, LEAST_SPAN_SECONDS)


def idle_profile(
    iterations: Sequence[StampedIteration], threshold: float, warm_up: int = WARM_UP_ITERATIONS
) -> IdleProfile:
    """Return the idle spans of these iterations of at least ``threshold`` seconds.

    Raises ValueError if no iteration is left after the warm-up, if stamps run backwards, and if iterations
    differ in their number of transfers, because they ran under different plans.
    """
    kept = iterations[warm_up:]
    if not kept:
        raise ValueError(f"{len(iterations)} iterations leave none after {warm_up} of warm-up")
    counts = {len(one.transfers) for one in kept}
    if len(counts) > 1:
        raise ValueError(f"iterations with {min(counts)} and {max(counts)} transfers are not of one plan")
    by_place = list(zip(*(_gaps(one) for one in kept), strict=True))
    least = [min(lengths) for lengths in by_place]
    spans = [IdleSpan(at, seconds) for at, seconds in enumerate(least[:-1]) if seconds >= threshold]
    return IdleProfile(
        spans=(*spans, IdleSpan(len(least) - 1, least[-1])),
        iteration_seconds=fmean(one.ended - one.began for one in kept),
        deviation=max(
            ((max(each) - min(each)) / fmean(each) for each in by_place if min(each) >= threshold),
            default=0.0,
        ),
    )


def _gaps(iteration: StampedIteration) -> list[float]:
    """Return the seconds before, between and after the transfers; 0 between overlapping transfers."""
    busy_until, gaps = iteration.began, []
    for began, ended in iteration.transfers:
        if ended < began or began < iteration.began or ended > iteration.ended:
            raise ValueError("a transfer's stamps run backwards or lie outside of its iteration")
        gaps.append(max(0.0, began - busy_until))
        busy_until = max(busy_until, ended)
    gaps.append(iteration.ended - busy_until)
    if gaps[-1] < 0.0:
        raise ValueError("an iteration ends before it begins")
    return gaps
