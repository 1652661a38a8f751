"""Drains a server for its operator and protects the promises that depend on it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog
from django.db import transaction

from cluster.choices import DrainState
from cluster.models import Server
from projects.errors import Conflict, Unavailable
from projects.models import User
from scheduling.choices import AssignmentState
from scheduling.core.question.snapshot import ServerSnapshot
from scheduling.models import Assignment, Job
from scheduling.services.rows.records import lock_cluster, planning_fact_changed, record
from scheduling.services.rows.wakeups import hint, wake

log = structlog.get_logger(__name__)


class PromisesWouldBreak(Conflict):
    """An operator's request would break promises; ``broken_promises`` lists them."""

    def __init__(self, what: str, broken: Sequence[dict[str, Any]]) -> None:
        listed = [
            {**item, "deadline_at": item["deadline_at"].isoformat() if item["deadline_at"] else None}
            for item in broken
        ]
        super().__init__(
            f"{what} would break {len(broken)} promise{'s' if len(broken) > 1 else ''}; wait for them to "
            "end, or set force.",
            extra={"broken_promises": listed},
        )


def _without(known: ServerSnapshot) -> ServerSnapshot:
    return dataclasses.replace(known, usable=False)


def promises_broken_by(
    server: Server, change: Callable[[ServerSnapshot], ServerSnapshot]
) -> list[dict[str, Any]]:
    """Return the promises (job, name, project, deadline) that would break if the server were as ``change``
    says.

    Raises:
        Unavailable: no plan can be computed at present.
    """
    # Imported here: some processes import this module and need not load the decision core.
    from scheduling.services.snapshots.broken_promises import jobs_newly_at_risk

    jobs = Job.objects.filter(pk__in=jobs_newly_at_risk(server, change)).order_by("deadline_at")
    return [
        {"job": job.pk, "name": job.name, "project": job.project.name, "deadline_at": job.deadline_at}
        for job in jobs
    ]


def promises_given_up(
    server: Server, change: Callable[[ServerSnapshot], ServerSnapshot], *, force: bool
) -> list[dict[str, Any]]:
    """Return `promises_broken_by`; with ``force``, an empty list if no plan can be computed."""
    try:
        return promises_broken_by(server, change)
    except Unavailable:
        if not force:
            raise
        return []


def server_drain(*, server: Server, actor: User, force: bool = False, reason: str = "") -> Server:
    """Stop giving the server new work and move its present work away.

    Raises:
        Conflict: it is drained already.
        PromisesWouldBreak: promises depend on it, and ``force`` is not set.
    """
    if server.drain != DrainState.NONE:
        raise Conflict(f"Server {server.name} is {server.drain} already.")
    broken = promises_given_up(server, _without, force=force)
    if broken and not force:
        raise PromisesWouldBreak(f"Draining {server.name}", broken)
    with transaction.atomic():
        cluster = lock_cluster(server.cluster_id)
        server.drain = DrainState.DRAINING
        server.drain_reason = reason[:300]
        server.save(update_fields=["drain", "drain_reason"])
        record_forced(broken, "drain_forced", f"drains server {server.name}", actor)
        log.info("server_drained", server=server.name, actor=actor.username, reason=server.drain_reason)
        planning_fact_changed(cluster)
        hint(f"cluster:{cluster.pk}", kind="servers")
        wake("plan", trigger=f"server {server.name} drains")
    return server


def record_forced(broken: Sequence[Mapping[str, Any]], kind: str, deed: str, actor: User) -> None:
    """Record in each job of ``broken`` which operator risked its promise, and by what."""
    for item in broken:
        text = f"{actor.username} {deed} although this promise may break."
        record(Job.objects.get(pk=item["job"]), kind, text, actor=actor.username)


@transaction.atomic
def server_undrain(*, server: Server, actor: User) -> Server:
    """Let the server be used again.

    Raises:
        Conflict: the server is not being drained.
    """
    cluster = lock_cluster(server.cluster_id)
    if server.drain == DrainState.NONE:
        raise Conflict(f"Server {server.name} is not being drained.")
    server.drain = DrainState.NONE
    server.drain_reason = ""
    server.save(update_fields=["drain", "drain_reason"])
    log.info("server_undrained", server=server.name, actor=actor.username)
    planning_fact_changed(cluster)
    hint(f"cluster:{cluster.pk}", kind="servers")
    wake("plan", trigger=f"server {server.name} is used again")
    return server


def finish_drains() -> int:
    """Mark draining servers without unreleased assignments as drained. Return their number."""
    busy = Assignment.objects.exclude(state=AssignmentState.RELEASED).values("gpu__server_id")
    return (
        Server.objects.filter(drain=DrainState.DRAINING).exclude(pk__in=busy).update(drain=DrainState.DRAINED)
    )
