"""Report on lending during a demo: what was on loan, how much of it the demo's jobs used, and what came
back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import fmean
from typing import Any

from punctual.client import Client, Job
from punctual.client.durations import format_duration
from punctual.client.models import JobEvent

HOW_TO_BORROW = (
    "This platform borrows nothing. With `PUNCTUAL_INFERENCE_AGENTS=3 PUNCTUAL_INFERENCE_USAGE=bursty make "
    "run` it has inference servers that train while they are idle."
)
#: Maximum number of orders read; a demo makes far fewer.
_MOST_ORDERS = 500
#: Kinds of events that name the GPUs of a generation; at which a generation trains; after which none trains.
_PLACES = ("start", "grow", "shrink", "migrate")
_TRAINS = ("running", "rescaled")
_STOPS = ("suspended", "interrupted", "completed", "failed", "cancelled")

Document = Mapping[str, Any]
Span = tuple[datetime, datetime]


@dataclass(frozen=True)
class LendingReport:
    """Report on one inference cluster over one period.

    ``lent_gpu_seconds``: GPU time on loan. ``used_gpu_seconds``: the part of it in which the demo's jobs
    trained. ``source``: origin of the latest usage; empty if not stated or not reported.
    ``worst_shortfall_servers``: None without a sample.
    """

    inference_cluster: str
    loans: int
    lent_servers: int
    lent_gpu_seconds: float
    used_gpu_seconds: float
    jobs_that_borrowed: int
    reclaims: int
    returned_servers: int
    servers_on_their_way: int
    seconds_to_return: tuple[float, ...]
    preempted_jobs: int
    rescaled_jobs: int
    #: Jobs whose growth or start was broken off before it took effect.
    held_back_jobs: int
    worst_shortfall_servers: int | None
    source: str

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        name = (
            f"Lending from {self.inference_cluster}, whose usage is "
            f"{self.source or 'of a source not stated'}:"
        )
        if not self.lent_gpu_seconds:
            return [name, "  lent      nothing while the demo ran"]
        lent = f"{_count(self.lent_servers, 'server')} in {_count(self.loans, 'new loan')}"
        share = min(1.0, self.used_gpu_seconds / self.lent_gpu_seconds)
        took = (
            f", {format_duration(fmean(self.seconds_to_return))} on average, "
            f"{format_duration(max(self.seconds_to_return))} at worst"
            if self.seconds_to_return
            else ""
        )
        coming = f", {self.servers_on_their_way} on their way" if self.servers_on_their_way else ""
        missing = (
            ""
            if self.worst_shortfall_servers is None
            else f"; {self.worst_shortfall_servers} missing at worst"
        )
        cost = f"preempted, {self.rescaled_jobs} rescaled, {self.held_back_jobs} held back"
        return [
            name,
            f"  lent      {lent}, {self.lent_gpu_seconds / 60:.1f} GPU minutes",
            f"  used      {share:.0%} of that time, by {_count(self.jobs_that_borrowed, 'job')} of this demo",
            (
                f"  returned  {_count(self.returned_servers, 'server')} for "
                f"{_count(self.reclaims, 'reclaim')}{took}{coming}"
            ),
            f"  cost      {_count(self.preempted_jobs, 'job')} {cost}{missing}",
        ]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def read_report(
    operator: Client, name: str, jobs: Sequence[Job], since: datetime, until: datetime
) -> LendingReport:
    """Query the platform and return the report."""
    inference = operator.inference
    gpus = {row["name"]: int(row["gpus"]) for row in inference.servers(name)}
    loans = inference.loan_orders(name, limit=_MOST_ORDERS)
    reclaims = inference.reclaim_orders(name, limit=_MOST_ORDERS)
    return added_up(
        name, gpus, loans, reclaims, inference.usage(name), [job.events() for job in jobs], since, until
    )


def added_up(
    name: str,
    gpus: Mapping[str, int],
    loans: Sequence[Document],
    reclaims: Sequence[Document],
    usage: Sequence[Document],
    histories: Sequence[Sequence[JobEvent]],
    since: datetime,
    until: datetime,
) -> LendingReport:
    """Return the report from the API's documents. ``gpus``: of every inference server; ``usage``: newest
    first."""
    carried_out = [order for order in loans if order["state"] == "done" and order["servers"]]
    spans = _on_loan(carried_out, reclaims, since, until)
    used = [_borrowed_gpu_seconds(events, gpus.keys(), since, until) for events in histories]
    begun = [order for order in reclaims if _time(order["created_at"]) >= since]
    chosen = [row for order in begun for row in order["servers"]]
    over = [order for order in begun if order["seconds_to_return"] is not None and order["servers"]]
    samples = [sample for sample in usage if _time(sample["period_ends_at"]) >= since]
    return LendingReport(
        inference_cluster=name,
        loans=sum(_time(order["finished_at"]) >= since for order in carried_out),
        lent_servers=len(spans),
        lent_gpu_seconds=sum(gpus.get(server, 0) * _seconds(where) for server, where in spans.items()),
        used_gpu_seconds=sum(used),
        jobs_that_borrowed=sum(seconds > 0 for seconds in used),
        reclaims=len(begun),
        returned_servers=sum(row["returned_at"] is not None for row in chosen),
        servers_on_their_way=sum(row["returned_at"] is None for row in chosen),
        seconds_to_return=tuple(float(order["seconds_to_return"]) for order in over),
        preempted_jobs=sum(order["preempted_jobs"] or 0 for order in begun),
        rescaled_jobs=sum(order["rescaled_jobs"] or 0 for order in begun),
        held_back_jobs=sum(order["held_back_jobs"] or 0 for order in begun),
        worst_shortfall_servers=max((int(sample["shortfall_servers"]) for sample in samples), default=None),
        source=str(usage[0].get("source", "")) if usage else "",
    )


def _on_loan(
    loans: Sequence[Document], reclaims: Sequence[Document], since: datetime, until: datetime
) -> dict[str, list[Span]]:
    """Return when each server was away between two times; only servers that were."""
    moves: dict[str, list[tuple[datetime, bool]]] = defaultdict(list)
    for order in loans:
        for server in order["servers"]:
            moves[server].append((_time(order["finished_at"]), True))
    for row in (row for order in reclaims for row in order["servers"] if row["returned_at"]):
        moves[row["server"]].append((_time(row["returned_at"]), False))
    spans: dict[str, list[Span]] = {}
    for server, its in moves.items():
        ordered = sorted(its)
        ends = [at for at, _ in ordered[1:]] + [until]
        away = [(max(at, since), end) for (at, lent), end in zip(ordered, ends, strict=True) if lent]
        if found := [(begin, end) for begin, end in away if begin < end]:
            spans[server] = found
    return spans


def _borrowed_gpu_seconds(
    events: Sequence[JobEvent], servers: Collection[str], since: datetime, until: datetime
) -> float:
    """Return the GPU seconds for which a job trained on any of these servers. ``events`` is sorted, oldest
    first."""
    borrowed: dict[int, int] = {}
    seconds, count, begin = 0.0, 0, since
    for event in events:
        if event.happened_at is None:
            continue
        generation = int(event.detail.get("generation") or 0)
        if event.kind in _PLACES:
            names = [str(gpu).rpartition(":")[0] for gpu in event.detail["gpus"]]
            borrowed[generation] = sum(name in servers for name in names)
        if event.kind in _TRAINS or event.kind in _STOPS:
            seconds += count * max(0.0, (min(event.happened_at, until) - max(begin, since)).total_seconds())
            begin = event.happened_at
            count = borrowed.get(generation, 0) if event.kind in _TRAINS else 0
    return seconds + count * max(0.0, (until - max(begin, since)).total_seconds())


def _seconds(spans: Sequence[Span]) -> float:
    return sum((end - begin).total_seconds() for begin, end in spans)


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
