"""Idle spans: the profile of stamped iterations, and a plan made from it, checked on every iteration."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np

from recovery.traffic.idle_spans import IdleProfile, StampedIteration, idle_profile, threshold_seconds
from recovery.traffic.link import Link, SubBuffers
from recovery.traffic.partition import TrafficPlan, partition
from research.figure import Check, Context, FigureDefinition, FigureReport, Table
from research.gemini.specs import FailureSpec

NAME = "spans"
#: An iteration of about 62 s: gaps and transfers in seconds. Lists of spans are not published.
GAPS = (0.60, 0.35, 0.004, 0.80, 0.45, 0.30)
TRANSFER_SECONDS = 11.9
#: Gaps lie less than 10 % apart, as published.
DEVIATION = 0.08
ITERATIONS, WARM_UP = 20, 8
STARTUP_SECONDS = 0.0002
#: GPT-2 100B for one GPU: 9.375 GB at 0.85 of 50 Gbps.
CHECKPOINT_BYTES = 9_375_000_000
LINK = Link(0.85 * 50e9 / 8, STARTUP_SECONDS)


def runs(full: bool) -> Sequence[FailureSpec]:
    """Return no run: stamps are drawn by seed."""
    return ()


def stamped(seed: int = 0) -> list[StampedIteration]:
    """Return iterations with varying gaps; those of the warm-up are longer."""
    rng = np.random.default_rng(seed)
    found = []
    at = 0.0
    for number in range(ITERATIONS):
        began = at
        transfers: list[tuple[float, float]] = []
        for place, gap in enumerate(GAPS):
            longer = 1.5 if number < WARM_UP else 1.0
            at += gap * longer * (1.0 + float(rng.uniform(-DEVIATION / 2, DEVIATION / 2)))
            if place < len(GAPS) - 1:
                transfers.append((at, at + TRANSFER_SECONDS))
                at += TRANSFER_SECONDS
        found.append(StampedIteration(began, at, tuple(transfers)))
    return found


def report(context: Context) -> FigureReport:
    """Report the profile, the plan, and the overrun of plans from mean gaps."""
    kept = stamped()[WARM_UP:]
    profile = idle_profile(stamped(), threshold_seconds(STARTUP_SECONDS), WARM_UP)
    least = [span.seconds for span in profile.spans]
    plan = _plan(least, 0.8)
    # Spans are used whole, so that only the choice of their length matters.
    overrun = _overruns(profile, _plan(least, 1.0), kept)
    overrun_by_mean = _overruns(
        profile, _plan([fmean(_gap(one, span.place) for one in kept) for span in profile.spans], 1.0), kept
    )
    return FigureReport(
        name=FIGURE.name,
        title=FIGURE.title,
        made=f"stamps of {ITERATIONS} iterations drawn by seed; profile and plan by recovery/traffic",
        notes=(
            (
                "Lists of spans are not published: these are invented, with the published deviation and "
                "GPT-2 100B's traffic. What is shown is that plans from the least of each place fit every "
                "iteration."
            ),
        ),
        tables=(_table(profile, plan, kept),),
        checks=(
            Check(
                "Gaps differ by less than 10 % between iterations, as published",
                profile.deviation < 0.10,
                f"{profile.deviation:.1%}",
            ),
            Check(
                "A plan from the least gaps fits every iteration",
                overrun == 0,
                f"{overrun} of {len(kept) * len(least)} spans overrun, each used whole; {overrun_by_mean} "
                "from mean gaps",
            ),
            Check(
                "A point each iteration does not lengthen it",
                plan.extension_seconds == 0.0,
                f"{plan.extension_seconds:.2f} s; {profile.idle_seconds:.2f} s idle, of which 80 % are used, "
                f"for {LINK.seconds(CHECKPOINT_BYTES):.2f} s of traffic",
            ),
        ),
    )


def _plan(spans: Sequence[float], share: float) -> TrafficPlan:
    return partition(spans, CHECKPOINT_BYTES, 2, LINK, SubBuffers(), share)


def _gap(iteration: StampedIteration, place: int) -> float:
    ends = [iteration.began, *(ended for _, ended in iteration.transfers)]
    begins = [*(began for began, _ in iteration.transfers), iteration.ended]
    return begins[place] - ends[place]


def _used(plan: TrafficPlan, span: int) -> float:
    return sum(LINK.seconds(chunk.size) for chunk in plan.chunks if chunk.span == span)


def _overruns(profile: IdleProfile, plan: TrafficPlan, iterations: Sequence[StampedIteration]) -> int:
    return sum(
        _used(plan, number) > _gap(one, span.place) + 1e-9
        for one in iterations
        for number, span in enumerate(profile.spans)
    )


def _table(profile: IdleProfile, plan: TrafficPlan, iterations: Sequence[StampedIteration]) -> Table:
    rows = []
    for number, span in enumerate(profile.spans):
        lengths = [_gap(one, span.place) for one in iterations]
        sizes = [chunk.size for chunk in plan.chunks if chunk.span == number]
        rows.append(
            (
                f"{span.place + 1}",
                f"{min(lengths):.3f} to {max(lengths):.3f} s",
                f"{span.seconds:.3f} s",
                f"{len(sizes)}",
                f"{sum(sizes) / 1e6:,.0f} MB",
                f"{_used(plan, number):.3f} s",
            )
        )
    return Table(
        "Spans and what they carry",
        "Gaps below 10 ms, or five startups, are left out. The last span takes what is left.",
        ("Gap", "Over iterations", "Span", "Chunks", "Bytes", "Used"),
        tuple(rows),
    )


FIGURE = FigureDefinition(NAME, "Idle spans and the partition of a checkpoint", False, runs, report)
