"""Explanation of a reclaim: why it took its servers, what other methods would have taken, and what followed
(Lyra section 3.4).

For operators: it names jobs of all projects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lending.models import LoanOrder, ReclaimOrder
from scheduling.core.question.quantities import duration_text
from scheduling.models import Job, JobEvent

#: Maximum number of job events on an order's page.
MOST_JOB_EVENTS = 100


@dataclass(frozen=True, slots=True)
class JobFate:
    """One job that had GPUs on a chosen server; ``fate`` is empty until all servers are back, ``job`` is None
    if the job was deleted."""

    job_id: str
    job: Job | None
    fate: str


@dataclass(frozen=True, slots=True)
class ChosenServer:
    """One chosen server: what it held, and why it was taken, in a sentence."""

    name: str
    #: What it held: nothing, flexible workers only, or base workers.
    group: str
    #: The reason, in a sentence.
    why: str
    returned_at: datetime | None
    seconds_to_return: float | None
    confirmed_at: datetime | None


@dataclass(frozen=True, slots=True)
class Alternative:
    """Choice of one method. ``cost`` and ``compute_seconds`` are None if they were not recorded."""

    #: Name of the method (`ReclaimMethod`).
    method: str
    #: Whether this choice was carried out.
    chosen: bool
    servers: tuple[str, ...]
    #: Those of ``servers`` that the carried-out choice left on loan.
    differing: frozenset[str]
    preempted_jobs: int
    #: GPUs of preempted jobs on servers that stay.
    collateral_gpus: int
    cost: float | None
    compute_seconds: float | None


@dataclass(frozen=True, slots=True)
class TimelineLine:
    """One event of an order; ``job`` is set if it concerns a job."""

    at: datetime
    title: str
    text: str
    job: Job | None = None


def job_fates(order: ReclaimOrder) -> list[JobFate]:
    """Return every job with GPUs on a chosen server and what became of it."""
    fates = order.outcome.get("jobs", {})
    names = list(order.choice.get("jobs", ()))
    jobs = Job.objects.in_bulk(names)
    return [JobFate(job_id, jobs.get(job_id), str(fates.get(job_id, ""))) for job_id in names]


def chosen_servers(order: ReclaimOrder) -> list[ChosenServer]:
    """Return the servers of an order in order of choice."""
    method = str(order.choice.get("method", ""))
    entries = {entry["server"]: entry for entry in order.choice.get("servers", ())}
    return [
        ChosenServer(
            name=row.server.name,
            group=row.group,
            why=why_chosen(method, entries.get(row.server.name, {"group": row.group, "cost": row.cost})),
            returned_at=row.returned_at,
            seconds_to_return=None
            if row.returned_at is None
            else (row.returned_at - row.begun_at).total_seconds(),
            confirmed_at=row.confirmed_at,
        )
        for row in order.servers.all()
    ]


def why_chosen(method: str, entry: Mapping[str, Any]) -> str:
    """Return the reason for one server in a sentence, from the record of its choice (Lyra section 3.4)."""
    group, cost = entry.get("group"), entry.get("cost")
    stopped = int(entry.get("newly_preempted") or 0)
    stops = f"{stopped} job{'s' if stopped != 1 else ''} stopped" if stopped else "no further job stopped"
    if method == "random":
        return f"Drawn at random; {stops}."
    if method == "scf":
        return f"Fewest jobs: {_figure(cost)} on it when it was picked; {stops}."
    if group == "idle":
        return "Idle: nothing ran on it."
    if group == "flexible":
        if cost is None:
            return "Only flexible workers, without which a job cannot go on at all."
        lost = f", which lose {duration_text(cost)} by it" if cost else ""
        return f"Only flexible workers: their jobs go on with fewer GPUs{lost}."
    excess = int(entry.get("excess_gpus") or 0)
    elsewhere = f"; frees {excess} GPU{'s' if excess != 1 else ''} on servers that stay" if excess else ""
    return f"Preemption cost {_figure(cost)} when it was picked; {stops}{elsewhere}."


def _figure(value: float | None) -> str:
    return "not recorded" if value is None else f"{value:.3g}"


def alternatives(order: ReclaimOrder) -> list[Alternative]:
    """Return the choice of each recorded method, the carried-out one first."""
    choice = order.choice
    method = str(choice.get("method", ""))
    carried_out = {entry["server"] for entry in choice.get("servers", ())}
    listed = {str(one["method"]): one for one in choice.get("alternatives", ())}
    if method and method not in listed:
        listed[method] = {
            "method": method,
            "servers": [entry["server"] for entry in choice.get("servers", ())],
            "preempted_jobs": len(choice.get("preempted", ())),
            "collateral_gpus": choice.get("collateral_gpus", 0),
        }
    found = [
        Alternative(
            method=name,
            chosen=name == method,
            servers=tuple(one["servers"]),
            differing=frozenset(one["servers"]) - carried_out,
            preempted_jobs=int(one["preempted_jobs"]),
            collateral_gpus=int(one["collateral_gpus"]),
            cost=one.get("cost", _recorded_cost(choice) if name == method else None),
            compute_seconds=one.get("compute_seconds"),
        )
        for name, one in listed.items()
    ]
    return sorted(found, key=lambda one: not one.chosen)


def _recorded_cost(choice: Mapping[str, Any]) -> float | None:
    """Return the preemption cost of the carried-out choice: the sum over servers for which jobs were
    preempted."""
    costs = [entry["cost"] for entry in choice.get("servers", ()) if entry["group"] == "preemption"]
    if str(choice.get("method")) in ("random", "scf") or None in costs:
        return None
    return float(sum(costs))


def order_timeline(order: LoanOrder | ReclaimOrder, now: datetime) -> list[TimelineLine]:
    """Return every transaction of an order with the events of its jobs meanwhile, oldest first."""
    lines = _loan_lines(order) if isinstance(order, LoanOrder) else _reclaim_lines(order, now)
    return sorted(lines, key=lambda line: line.at)


def _loan_lines(order: LoanOrder) -> list[TimelineLine]:
    lines = [TimelineLine(order.created_at, "Offered", f"{len(order.server_names)} servers.")]
    if order.not_before > order.created_at:
        lines.append(
            TimelineLine(order.not_before, "Held until then", "A server had come home a short time before.")
        )
    if order.finished_at is not None:
        lines.append(TimelineLine(order.finished_at, order.get_state_display(), order.reason))
    return lines


def _reclaim_lines(order: ReclaimOrder, now: datetime) -> list[TimelineLine]:
    ahead = {True: "Measured usage alone asked for none yet.", False: "Measured usage asked for them."}
    lines = [
        TimelineLine(
            order.created_at,
            "Asked back",
            f"{order.count} servers. {'' if order.ahead_of_usage is None else ahead[order.ahead_of_usage]}",
        )
    ]
    if order.begun_at is not None:
        offered = f" {order.withdrawn} more had been offered and not lent." if order.withdrawn else ""
        names = ", ".join(row.server.name for row in order.servers.all())
        lines.append(TimelineLine(order.begun_at, "Chosen", f"{names or 'No server'}.{offered}"))
        lines += _job_lines(order, now)
    lines += _server_lines(order)
    if order.wanted_by <= now:
        lines.append(TimelineLine(order.wanted_by, "Wanted by", "The time by which they were wanted back."))
    return lines


def _server_lines(order: ReclaimOrder) -> list[TimelineLine]:
    """Return a line for each transaction in which servers returned, or in which they were confirmed."""
    home: dict[datetime, list[str]] = {}
    confirmed: dict[datetime, list[str]] = {}
    for row in order.servers.all():
        if row.returned_at is not None:
            home.setdefault(row.returned_at, []).append(row.server.name)
        if row.confirmed_at is not None:
            confirmed.setdefault(row.confirmed_at, []).append(row.server.name)
    lines = []
    for at, names in home.items():
        last = " The order is met." if order.returned_at == at else ""
        lines.append(TimelineLine(at, "Home", f"{', '.join(names)}: empty and back.{last}"))
    for at, names in confirmed.items():
        lines.append(TimelineLine(at, "Confirmed", f"{', '.join(names)}, by the inference scheduler."))
    return lines


def _job_lines(order: ReclaimOrder, now: datetime) -> list[TimelineLine]:
    events = (
        JobEvent.objects.filter(
            job_id__in=list(order.choice.get("jobs", ())),
            happened_at__gte=order.begun_at,
            happened_at__lte=order.returned_at or now,
        )
        .select_related("job")
        .order_by("happened_at", "id")[:MOST_JOB_EVENTS]
    )
    return [TimelineLine(event.happened_at, event.kind, event.message, event.job) for event in events]
