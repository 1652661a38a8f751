"""Silent servers: first suspect, then fenced. Work of a fenced server may restart elsewhere."""

from __future__ import annotations

from datetime import datetime, timedelta

import structlog
from django.db import transaction
from django.db.models import F, Q, QuerySet, Value
from django.db.models.functions import Least
from django.utils import timezone

from cluster.choices import ServerState
from cluster.models import Agent, Cluster, Outage, Server
from projects.prepared import PreparedRows
from scheduling.choices import (
    PLANNED_STATES,
    AssignmentState,
    GenerationState,
    JobState,
    OfferState,
    Purpose,
    RetireReason,
)
from scheduling.life_cycle.events import MAXIMUM_FAILURES
from scheduling.models import Assignment, Generation, Job, Offer, Recovery, Worker
from scheduling.other_work import registered
from scheduling.services.agents import lease_clock
from scheduling.services.agents.protection_watch import anything_to_watch, watch_protection
from scheduling.services.agents.reconciling import disturbed, mend_differences
from scheduling.services.agents.recovering import advance_recoveries, recoveries_under_way
from scheduling.services.agents.standby import keep_standby, replace_lost
from scheduling.services.generations.generations import retire
from scheduling.services.generations.held_gpus import free_assignments, hold_gpus, tell_agents
from scheduling.services.generations.lifecycle import advance, excuse, lose_generation
from scheduling.services.generations.protection import replace_lost_copies
from scheduling.services.generations.recoveries import note_lost_server
from scheduling.services.rows.one_by_one import by_itself
from scheduling.services.rows.records import lock_cluster, planning_fact_changed
from scheduling.services.rows.wakeups import hint, wake

log = structlog.get_logger(__name__)

#: Jobs reconciled in one transaction. Reports and the planner wait for the cluster's row meanwhile.
MOST_RECONCILED_AT_ONCE = 8


def expire_leases() -> None:
    """Check every agent's silence. After a gap in these checks, no lease expires for one fence period."""
    for cluster in Cluster.objects.all():
        _expire_in(cluster)


def _expire_in(cluster: Cluster) -> None:
    watch = _look(cluster)
    now, hold_until = watch.checked_at, watch.hold_until
    assert now is not None, "this look"
    agents = (
        Agent.objects.filter(server__cluster=cluster)
        .select_related("server")
        .exclude(server__state=ServerState.REMOVED)
    )
    held_back = hold_until is not None and now < hold_until
    fence_after = cluster.fence_seconds + cluster.fence_margin_seconds
    for agent in agents:
        silent = agent.silent_seconds(now)
        state = agent.server.state
        with by_itself("looking at a lease", server=agent.server.name):
            if state == ServerState.SUSPECT and silent > fence_after and not held_back:
                fence_server(agent, cluster)
            elif state == ServerState.UP and silent > cluster.suspect_seconds:
                _suspect(agent, cluster, silent)


def _look(cluster: Cluster) -> lease_clock.Watch:
    """Record this check. If the clock was set since the previous one, keep agents' silences as they were."""
    before = lease_clock.Watch(
        cluster.leases_checked_at, cluster.leases_hold_until, dict(cluster.leases_clocks)
    )
    reading = lease_clock.read()
    watch, jump = lease_clock.look(before, reading, cluster.suspect_seconds, cluster.fence_seconds)
    looked = {
        "leases_checked_at": watch.checked_at,
        "leases_hold_until": watch.hold_until,
        "leases_clocks": watch.offsets,
    }
    away = lease_clock.gap_seconds(before, reading, jump)
    if not jump and away <= cluster.suspect_seconds:  # as in most looks: one statement
        Cluster.objects.filter(pk=cluster.pk).update(**looked)
        return watch
    with transaction.atomic():
        Cluster.objects.filter(pk=cluster.pk).update(**looked)
        if away > cluster.suspect_seconds:
            log.warning("the control plane was away", seconds=round(away, 1))
            stopped_at = reading.now - timedelta(seconds=away)
            Outage.objects.create(cluster=cluster, stopped_at=stopped_at, started_at=reading.now)
        if jump:
            log.warning("the database's clock was set", seconds=round(jump, 1))
            _set_silences(cluster, jump, reading.now)
    return watch


def _set_silences(cluster: Cluster, jump: float, now: datetime) -> None:
    """Shift last reports by a jump of the clock.

    A forward clock jump must not make agents look silent. A backward jump must not leave a last report in the
    future, or the next silence would go unnoticed.
    """
    agents = Agent.objects.filter(server__cluster=cluster, last_report_at__isnull=False)
    moved = F("last_report_at") + timedelta(seconds=max(0.0, jump))
    agents.update(last_report_at=Least(moved, Value(now)))


@transaction.atomic
def _suspect(agent: Agent, cluster: Cluster, silent: float) -> None:
    lock_cluster(cluster.pk)
    changed = Server.objects.filter(pk=agent.server_id, state=ServerState.UP).update(
        state=ServerState.SUSPECT, state_changed_at=timezone.now()
    )
    if changed:
        log.warning("server is suspect", server=agent.server.name, silent_seconds=round(silent, 1))
        replace_lost(cluster)
        planning_fact_changed(cluster)
        hint(f"cluster:{cluster.pk}", kind="servers")
        wake("plan", trigger=f"server {agent.server.name} is silent")


@transaction.atomic
def fence_server(agent: Agent, cluster: Cluster) -> None:
    """Give the server up. Its workers have stopped themselves by now, so its jobs may restart elsewhere."""
    lock_cluster(cluster.pk)
    now = timezone.now()
    agent = Agent.objects.select_for_update().select_related("server").get(pk=agent.pk)
    if agent.silent_seconds(lease_clock.now()) <= cluster.fence_seconds:
        return
    log.warning("server is fenced", server=agent.server.name)
    Server.objects.filter(pk=agent.server_id).update(state=ServerState.DOWN, state_changed_at=now)
    Agent.objects.filter(pk=agent.pk).update(fenced_at=now, memory_store={})
    replace_lost(cluster)
    Worker.objects.filter(server_id=agent.server_id).update(gone=True, changed_at=now)
    for work in registered():
        with by_itself("giving up a server's other work", server=agent.server.name):
            work.server_lost(agent.server_id, now)
    # Offers were computed with this server's GPUs.
    Offer.objects.filter(job__cluster=cluster, state=OfferState.OPEN).update(state=OfferState.WITHDRAWN)
    unreleased = Assignment.objects.filter(gpu__server_id=agent.server_id).exclude(
        state=AssignmentState.RELEASED
    )
    generations = Generation.objects.filter(pk__in=unreleased.values("generation_id")).exclude(
        state=GenerationState.RETIRED
    )
    # A generation that ended after this server's last report ended because of it, whatever other servers
    # reported.
    excuse(Generation.objects.filter(pk__in=unreleased.values("generation_id")))
    affected = set()
    for generation in generations.select_related("job__checkpoint", "master_server"):
        affected.add(generation.job_id)
        _lose(generation, f"server {agent.server.name} fell silent", cluster)
    recovering: list[Recovery] = []
    with by_itself("noting whose recovery it is", server=agent.server.name):
        recovering = note_lost_server(agent.server, agent.server.state_changed_at, now)
    with by_itself("replacing lost copies", server=agent.server.name):
        tell_agents(*replace_lost_copies(agent.server_id))
    waiting = free_assignments(list(unreleased.all()))
    for job_id in waiting:
        for generation in Generation.objects.filter(job_id=job_id, held_at=None).exclude(
            state=GenerationState.RETIRED
        ):
            hold_gpus(generation)
    for job in Job.objects.filter(pk__in=affected | waiting).select_related("checkpoint").order_by("pk"):
        with by_itself("advancing a job", job=job.pk):
            advance(job, cluster)
    advance_recoveries(cluster, {one.job_id for one in recovering})
    planning_fact_changed(cluster)
    hint(f"cluster:{cluster.pk}", kind="servers")
    wake("plan", trigger=f"server {agent.server.name} is fenced")


def _lose(generation: Generation, reason: str, cluster: Cluster) -> None:
    job = Job.objects.select_related("checkpoint").get(pk=generation.job_id)
    if generation.purpose == Purpose.PROFILING and job.may_be_measured():
        retire(generation, RetireReason.LOST, reason)
    elif not job.finished():
        gone_on = False
        with by_itself("going on without a generation", job=job.pk):
            lose_generation(job, generation, reason, cluster)
            gone_on = True
        if not gone_on:
            # The server is gone in any case; `reconcile` finds the job's next step.
            retire(Generation.objects.get(pk=generation.pk), RetireReason.LOST, reason)


def reconcile() -> int:
    """Advance every job with unretired or waiting work, and repair differences from its desired state.

    Such differences remain after lost messages or time-outs. If one job fails, it is left for the next call;
    the others proceed.
    """
    count = 0
    for cluster in Cluster.objects.all():
        # Without locking the cluster's row: a concurrent change of a job is seen by the next call.
        with_work = _WITH_WORK.ask(cluster.pk)
        jobs = disturbed(with_work, cluster, timezone.now())
        count += len(with_work) - len(jobs)
        for first in range(0, len(jobs), MOST_RECONCILED_AT_ONCE):
            several = jobs[first : first + MOST_RECONCILED_AT_ONCE]
            with transaction.atomic():
                current = lock_cluster(cluster.pk)
                found = Job.objects.filter(pk__in=several).select_related("checkpoint").order_by("pk")
                count += sum(_reconcile(job, current) for job in found)
        if recoveries_under_way(cluster):
            with transaction.atomic():
                advance_recoveries(lock_cluster(cluster.pk))
        _watch_protection(cluster)
        _keep_standby(cluster)
    return count


def _jobs_with_work(cluster_id: int) -> QuerySet[Job]:
    """Return jobs that have an unretired generation, hold GPUs, run, or have failed too often."""
    unretired = Generation.objects.exclude(state=GenerationState.RETIRED).values("job_id")
    held = Assignment.objects.filter(
        generation__state=GenerationState.RETIRED,
        state__in=[AssignmentState.WAITING, AssignmentState.HELD],
    ).values("job_id")
    jobs = Job.objects.filter(cluster=cluster_id).filter(
        Q(pk__in=unretired)
        | Q(pk__in=held)
        | Q(state=JobState.RUNNING)
        | Q(state__in=PLANNED_STATES, failures__gte=MAXIMUM_FAILURES)
    )
    return jobs.select_related("checkpoint").order_by("pk")


_WITH_WORK = PreparedRows(_jobs_with_work)


def _watch_protection(cluster: Cluster) -> None:
    """Check protection without locking the cluster's row: it reads what all servers hold, and planning does
    not depend on it.
    """
    try:
        if not anything_to_watch(cluster):
            return
        with transaction.atomic():
            watch_protection(cluster, timezone.now())
    except Exception:
        log.exception("protection could not be looked at", cluster=cluster.pk)


def _keep_standby(cluster: Cluster) -> None:
    """Fill the standby pool. Not called with the cluster's row locked, since it may run the policy."""
    try:
        keep_standby(cluster.pk)
    except Exception:
        log.exception("the pool of standby servers could not be looked at", cluster=cluster.pk)


def _reconcile(job: Job, cluster: Cluster) -> bool:
    try:
        with transaction.atomic():
            if job.may_be_measured():
                advance(job, cluster)
            mend_differences(job, cluster, timezone.now())
    except Exception:
        log.exception("a job could not be reconciled", job=job.pk)
        return False
    return True
