"""What the history of an inference cluster adds up to: servers over time, borrowed time, combined usage (Lyra
section 3.7.1).

Plain data in, plain data out: `lending/selectors/history.py` reads the rows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

#: A usage sample says nothing about a moment that is more periods away than this.
STALE_PERIODS = 2.5


class MoveKind(StrEnum):
    """How servers moved: the lines of the history that tell of moves are of these kinds."""

    LENT = "lent"
    ASKED_BACK = "asked_back"
    RETURNED = "returned"


@dataclass(frozen=True, slots=True)
class ServerStay:
    """How long a server has been part of a cluster; ``left_at`` is None while it is."""

    joined_at: datetime
    left_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ServerMove:
    """Servers that moved at a time, and how many were on loan and on their way back afterwards."""

    at: datetime
    kind: MoveKind
    servers: tuple[str, ...]
    on_loan: int
    reclaiming: int


@dataclass(frozen=True, slots=True)
class ServerCounts:
    """How many servers were where from ``at`` on. All but ``inference`` are on the training whitelist."""

    at: datetime
    training: int
    on_loan: int
    reclaiming: int
    inference: int

    @property
    def training_whitelist(self) -> int:
        """Servers that the training scheduler could use; on the other whitelist are those at their inference
        home."""
        return self.training + self.on_loan + self.reclaiming


@dataclass(frozen=True, slots=True)
class Span:
    """Something, named by ``key``, lasted from ``since`` until ``until``."""

    key: str
    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class UsagePoint:
    """Mean usage (0 to 1) of the time that ends at ``ends_at``; servers missing at worst, and away on
    average, in that time.

    ``seen_shortfall_servers``: missing as the inference side saw it, None where it does not say.
    """

    ends_at: datetime
    usage: float
    shortfall_servers: int = 0
    seen_shortfall_servers: int | None = None
    away_servers: float = 0.0


@dataclass(frozen=True, slots=True)
class TrainingPoint:
    """GPUs that training held at a moment, out of those that it could use, borrowed ones included."""

    at: datetime
    busy_gpus: float
    total_gpus: float


@dataclass(frozen=True, slots=True)
class InferenceSide:
    """GPUs of an inference cluster, its usage over time in points of ``point_seconds``, and when its servers
    moved."""

    servers: int
    gpus: int
    usage: Sequence[UsagePoint]
    point_seconds: float
    steps: Sequence[ServerCounts]

    def gpus_at_home(self, moment: datetime) -> float:
        """GPUs of servers that were not away then."""
        place = bisect_right(self.steps, moment, key=lambda step: step.at) - 1
        away = self.steps[place].on_loan + self.steps[place].reclaiming if place >= 0 else 0
        return self.gpus * (1.0 - away / self.servers) if self.servers else 0.0


@dataclass(frozen=True, slots=True)
class CombinedPoint:
    """GPUs of both clusters at a moment: those that trained, those that served requests, and all there
    were."""

    at: datetime
    training_busy_gpus: float
    training_gpus: float
    serving_gpus: float
    gpus: float

    @property
    def training_share(self) -> float:
        """Training alone: GPUs that held work out of those that training could use, borrowed ones
        included."""
        return self.training_busy_gpus / self.training_gpus if self.training_gpus else 0.0

    @property
    def combined_share(self) -> float:
        """GPUs that trained or served requests out of all GPUs of both clusters."""
        return (self.training_busy_gpus + self.serving_gpus) / self.gpus if self.gpus else 0.0


def server_steps(
    training: Collection[ServerStay],
    inference: Collection[ServerStay],
    moves: Sequence[ServerMove],
    since: datetime,
    until: datetime,
) -> list[ServerCounts]:
    """How many servers were where, one step for each moment at which something changed, from ``since`` until
    ``until``.

    ``moves``, oldest first, may begin before ``since``: the last one before it says where servers were then.
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
    """When each server was away from its inference home, from being lent until it was back, cut to ``since``
    and ``until``.

    ``moves``, oldest first, are those between the two times; ``away_now`` names the servers that are away at
    ``until``. A server that came home without having been lent in this time, or is away without having moved,
    was away since before.
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
    """Sum of the lengths of all spans; spans of one key that overlap count once."""
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
    """Usage of both clusters at each moment of ``training`` for which usage of the inference cluster is
    known.

    Requests are served at home: at most the GPUs that were there count as serving.
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
    """Usage of the point that covers the moment, or of the last one before it while that is not stale."""
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
    """At most ``most_rows`` points, each the mean of as many consecutive ones, at the time of the first of
    them."""
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
