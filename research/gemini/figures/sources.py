"""Sources of a recovery: the server that each server loads from, for the losses of the paper's examples."""

from __future__ import annotations

from collections.abc import Sequence

from recovery.placement.strategies import Placement, place
from research.figure import Check, Context, FigureDefinition, FigureReport, Table
from research.gemini.points.sources import Tier, choose_sources, copies_to_restore, lost_if_gone
from research.gemini.points.versions import KeptState, Slot, protected_groups, recoverable_version
from research.gemini.specs import FailureSpec

NAME = "sources"
#: Machines, replicas, lost machines from 1 on, and the peer that each loads from; None for durable storage.
BY_HAND: tuple[tuple[int, int, frozenset[int], dict[int, int] | None], ...] = (
    (4, 2, frozenset({2, 4}), {2: 1, 4: 3}),
    (4, 2, frozenset({1, 2}), None),
    (5, 2, frozenset({3}), {3: 4}),
    (5, 2, frozenset({3, 5}), None),
    (7, 3, frozenset({4, 5}), {4: 6, 5: 7}),
    (7, 3, frozenset({4, 5, 6}), None),
)
REACHED, VERSION, DURABLE = 310, 309, 200


def runs(full: bool) -> Sequence[FailureSpec]:
    """Return no run: each choice is made once."""
    return ()


def report(context: Context) -> FigureReport:
    """Report the choice of sources for each of these losses, and the loss if a machine fails."""
    found = [_case(*one) for one in BY_HAND]
    placement = place(5, 2)
    pairs = [{one, other} for one in range(5) for other in range(one)]
    kept = _everywhere(placement)
    survived = sum(recoverable_version(kept, 5, pair) is not None for pair in pairs)
    lost = sorted(set(lost_if_gone(placement, kept, REACHED, DURABLE)))
    return FigureReport(
        name=FIGURE.name,
        title=FIGURE.title,
        made="chosen by gemini/points; the point in memory is of the iteration before",
        tables=(
            Table(
                "Who loads from whom",
                "Machines count from 1. All others load their own state. Where a whole replica set is lost, "
                "all machines load the durable state, however new their own copies are.",
                ("N, m", "Lost", "From peers", "Groups", "Sent again", "By hand"),
                tuple(cells for cells, _ in found),
            ),
        ),
        checks=(
            Check(
                "Sources are those worked out by hand",
                all(right for _, right in found),
                f"{len(found)} losses",
            ),
            Check(
                "All pairs of 5 machines: 6 of 10 recover from memory",
                survived == 6,
                f"{survived} of {len(pairs)}",
            ),
            Check(
                "One lost machine costs one iteration",
                lost == [REACHED - VERSION],
                f"{lost} of {REACHED}; {REACHED - DURABLE} from durable storage",
            ),
        ),
    )


def _everywhere(placement: Placement) -> list[KeptState]:
    slots = Slot(VERSION, True), Slot(VERSION + 1, False)
    return [
        KeptState(owner, holder, slots) for owner, where in enumerate(placement.holders) for holder in where
    ]


def _case(
    machines: int, replicas: int, lost: frozenset[int], by_hand: dict[int, int] | None
) -> tuple[tuple[str, ...], bool]:
    placement = place(machines, replicas)
    kept = _everywhere(placement)
    gone = frozenset(one - 1 for one in lost)
    found = choose_sources(placement, kept, gone, DURABLE)
    peers: dict[int, int] | None = None
    again = "everything"
    if found.tier is not Tier.DURABLE:
        peers = {
            one.owner + 1: one.holder + 1
            for one in found.sources
            if one.tier is Tier.PEER and one.holder is not None
        }
        missing = copies_to_restore(placement, kept, VERSION, gone)
        again = ", ".join(f"{one.owner + 1} to {one.holder + 1}" for one in missing)
    cells = (
        f"{machines}, {replicas}",
        ", ".join(map(str, sorted(lost))),
        _told(peers),
        ", ".join(protected_groups(placement, kept, VERSION, gone)),
        again,
        _told(by_hand),
    )
    return cells, peers == by_hand


def _told(peers: dict[int, int] | None) -> str:
    if peers is None:
        return "durable, all"
    return ", ".join(f"{owner} from {holder}" for owner, holder in peers.items())


FIGURE = FigureDefinition(NAME, "Sources of a recovery", False, runs, report)
