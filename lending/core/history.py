"""Figures from an inference cluster's history: servers over time, borrowed time, combined usage (Lyra section
3.7.1).

Pure: `lending/selectors/history.py` reads the rows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

#: A usage sample is stale for moments more than this many periods after it.
STALE_PERIODS = 2.5


class MoveKind(StrEnum):
    """Kinds of history lines that record a move of servers."""

    LENT = "lent"
    ASKED_BACK = "asked_back"
    RETURNED = "returned"


@dataclass(frozen=True, slots=True)
class ServerStay:
    """Time during which a server belongs to a cluster; ``left_at`` is None while it still does."""

    joined_at: datetime
    left_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ServerMove:
    """One move of servers, with the numbers of servers on loan and being returned after it."""

    #: When the move took effect.
    at: datetime
    kind: MoveKind
    servers: tuple[str, ...]
    #: Servers on loan after the move.
    on_loan: int
    #: Servers being returned after the move.
    reclaiming: int


@dataclass(frozen=True, slots=True)
class ServerCounts:
    """Number of servers in each place from ``at`` on. All but ``inference`` are on the training whitelist."""

    #: Begin of the time with these counts.
    at: datetime
    #: Servers of the training cluster's own.
    training: int
    #: Servers lent to training, without those being returned.
    on_loan: int
    #: Servers being returned to inference.
    reclaiming: int
    inference: int

    @property
    def training_whitelist(self) -> int:
        """Servers that the training scheduler may use. Servers at their inference home are on the other
        whitelist."""
        return self.training + self.on_loan + self.reclaiming


@dataclass(frozen=True, slots=True)
class Span:
    """A time interval of ``key``, for example a server's name."""

    key: str
    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class UsagePoint:
    """Mean usage (0 to 1) of the interval that ends at ``ends_at``.

    ``shortfall_servers``: the largest number of missing servers in it. ``seen_shortfall_servers``: the same
    as the inference side reported it; None if it did not. ``away_servers``: mean number of servers away.
    """

    ends_at: datetime
    #: Mean share of GPUs that served requests, 0 to 1.
    usage: float
    shortfall_servers: int = 0
    seen_shortfall_servers: int | None = None
    away_servers: float = 0.0


@dataclass(frozen=True, slots=True)
class TrainingPoint:
    """GPUs that training held at a moment, and GPUs that it could use, borrowed ones included."""

    at: datetime
    #: GPUs that training held.
    busy_gpus: float
    #: GPUs that training could use, borrowed ones included.
    total_gpus: float


@dataclass(frozen=True, slots=True)
class InferenceSide:
    """An inference cluster's servers and GPUs, its usage in points of ``point_seconds``, and its server
    counts over time, oldest first."""

    servers: int
    gpus: int
    #: Points of `point_seconds`, oldest first.
    usage: Sequence[UsagePoint]
    point_seconds: float
    #: Server counts, each valid until the next, oldest first.
    steps: Sequence[ServerCounts]

    def gpus_at_home(self, moment: datetime) -> float:
        """Return the number of GPUs on servers that were at home at ``moment``."""
        place = bisect_right(self.steps, moment, key=lambda step: step.at) - 1
        away = self.steps[place].on_loan + self.steps[place].reclaiming if place >= 0 else 0
        return self.gpus * (1.0 - away / self.servers) if self.servers else 0.0


@dataclass(frozen=True, slots=True)
class CombinedPoint:
    """GPUs of both clusters at a moment: busy with training, usable by training, serving requests, and
    all."""

    at: datetime
    #: GPUs that training held.
    training_busy_gpus: float
    #: GPUs that training could use.
    training_gpus: float
    #: GPUs that served requests.
    serving_gpus: float
    gpus: float

    @property
    def training_share(self) -> float:
        """Busy training GPUs over the GPUs that training could use, borrowed ones included."""
        return self.training_busy_gpus / self.training_gpus if self.training_gpus else 0.0

    @property
    def combined_share(self) -> float:
        """GPUs that trained or served requests over all GPUs of both clusters."""
        return (self.training_busy_gpus + self.serving_gpus) / self.gpus if self.gpus else 0.0


def server_steps(
    training: Collection[ServerStay],
    inference: Collection[ServerStay],
    moves: Sequence[ServerMove],
    since: datetime,
    until: datetime,
) -> list[ServerCounts]:
    """Return the server counts at each change between ``since`` and ``until``, and at both ends.

    ``moves`` is sorted, oldest first. It may start before ``since``: its last entry before then gives the
    counts at ``since``.
    """
    changes = {since, until}
    for server in (*training, *inference):
        changes |= {moment for moment in (server.joined_at, server.left_at) if moment is not None}
    changes |= {move.at for move in moves}
    steps = []
    for moment in sorted(change for change in changes if since <= change <= until):
        place = bisect_right(moves, moment, key=lambda move: move.at) - 1
        on_loan, reclaiming = (moves[place].on_loan, moves[place].reclaiming) if place >= 0 else (0, 0)
        steps.append(
            ServerCounts(
                at=moment,
                training=_members(training, moment),
                on_loan=on_loan,
                reclaiming=reclaiming,
                inference=max(0, _members(inference, moment) - on_loan - reclaiming),
            )
        )
    return steps


def _members(servers: Iterable[ServerStay], moment: datetime) -> int:
    return sum(
        server.joined_at <= moment and (server.left_at is None or moment < server.left_at)
        for server in servers
    )


def borrowed_spans(
    moves: Iterable[ServerMove], away_now: Collection[str], since: datetime, until: datetime
) -> list[Span]:
    """Return when each server was away from its inference home, from loan to return, clipped to ``since`` and
    ``until``.

    ``moves`` lists the moves between the two times, oldest first; ``away_now`` names the servers away at
    ``until``. A server that returned without a loan in this time, or that is away without a move, counts as
    away from ``since`` on.
    """
    left_at: dict[str, datetime] = {}
    moved: set[str] = set()
    spans = []
    for move in moves:
        for server in move.servers:
            if move.kind == MoveKind.LENT:
                left_at[server] = move.at
            elif move.kind == MoveKind.RETURNED:
                begun = left_at.pop(server, since if server not in moved else move.at)
                spans.append(Span(server, begun, move.at))
            elif server not in moved:
                left_at.setdefault(server, since)
            moved.add(server)
    spans += [Span(server, left_at.get(server, since), until) for server in sorted(away_now)]
    return [span for span in spans if span.until > span.since]


def seconds_in(spans: Iterable[Span]) -> float:
    """Return the total length of the spans in seconds. Overlapping spans of one key count once."""
    by_key: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        by_key[span.key].append(span)
    total = 0.0
    for several in by_key.values():
        covered_until: datetime | None = None
        for span in sorted(several, key=lambda span: span.since):
            begun = span.since if covered_until is None else max(span.since, covered_until)
            if span.until > begun:
                total += (span.until - begun).total_seconds()
                covered_until = span.until
    return total


def combined_usage(training: Iterable[TrainingPoint], inference: InferenceSide) -> list[CombinedPoint]:
    """Return the usage of both clusters at each ``training`` point at which the inference usage is known.

    Requests are served at home, so the serving GPUs are at most the GPUs at home.
    """
    points = []
    for point in training:
        usage = _usage_at(inference, point.at)
        if usage is None:
            continue
        at_home = inference.gpus_at_home(point.at)
        points.append(
            CombinedPoint(
                at=point.at,
                training_busy_gpus=point.busy_gpus,
                training_gpus=point.total_gpus,
                serving_gpus=min(usage * inference.gpus, at_home),
                gpus=point.total_gpus + at_home,
            )
        )
    return points


def _usage_at(inference: InferenceSide, moment: datetime) -> float | None:
    """Return the usage of the point that covers ``moment``, else of the last point before it unless it is
    stale."""
    place = bisect_left(inference.usage, moment, key=lambda point: point.ends_at)
    if place < len(inference.usage):
        following = inference.usage[place]
        if following.ends_at - timedelta(seconds=inference.point_seconds) <= moment:
            return following.usage
    if place:
        earlier = inference.usage[place - 1]
        if moment - earlier.ends_at <= timedelta(seconds=STALE_PERIODS * inference.point_seconds):
            return earlier.usage
    return None


def condensed(points: Sequence[CombinedPoint], most_rows: int) -> list[CombinedPoint]:
    """Return at most ``most_rows`` points. Each is the mean of equally many consecutive points, at the time
    of the first."""
    if not points:
        return []
    size = -(-len(points) // most_rows)
    return [_mean(points[start : start + size]) for start in range(0, len(points), size)]


def _mean(points: Sequence[CombinedPoint]) -> CombinedPoint:
    count = len(points)
    return CombinedPoint(
        at=points[0].at,
        training_busy_gpus=sum(point.training_busy_gpus for point in points) / count,
        training_gpus=sum(point.training_gpus for point in points) / count,
        serving_gpus=sum(point.serving_gpus for point in points) / count,
        gpus=sum(point.gpus for point in points) / count,
    )
