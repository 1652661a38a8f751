"""Compares the workers that an agent reports with those that are stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Exists

from cluster.choices import LendingState
from cluster.models import Agent, Cluster, Server
from projects.prepared import PreparedRows, PreparedValues
from punctual.protocol.reports import CheckedItem, RefusedItem
from scheduling.choices import AssignmentState, GenerationState
from scheduling.models import Assignment, Generation, Job, Worker
from scheduling.selectors.agents.own_work import OwnWork, Place
from scheduling.services.agents.recovering import advance_recoveries
from scheduling.services.generations.held_gpus import hold_gpus, release_cleared
from scheduling.services.generations.lifecycle import advance
from scheduling.services.rows.bulk import update_rows
from scheduling.services.rows.one_by_one import by_itself
from scheduling.services.rows.records import lock_cluster, planning_fact_changed
from scheduling.services.rows.wakeups import wake


@dataclass(frozen=True)
class ReportedWorkers:
    """Reported workers by place. `unclear`: some entry could not be read, so more workers may exist than are
    listed.
    """

    by_place: Mapping[Place, Mapping[str, Any]]
    unclear: bool

    @property
    def alive(self) -> set[Place]:
        return {place for place, entry in self.by_place.items() if entry["phase"] != "exited"}

    @property
    def any_alive(self) -> bool:
        return self.unclear or bool(self.alive)


def own_workers(
    agent: Agent, entries: Sequence[CheckedItem], malformed: Sequence[RefusedItem]
) -> tuple[ReportedWorkers, list[RefusedItem]]:
    """Return the entries that belong to work of the agent's server, and a refusal for each other entry."""
    own = OwnWork(agent.server_id, (item.value["job"] for item in entries))
    by_place: dict[Place, Mapping[str, Any]] = {}
    strange = []
    for item in entries:
        problem = own.problem(item.value)
        if problem is None:
            by_place[item.value["job"], item.value["generation"], item.value["rank"]] = item.value
        else:
            strange.append(RefusedItem("workers", item.index, problem, item.value["job"]))
    return ReportedWorkers(by_place, unclear=bool(malformed)), strange


_KNOWN = PreparedValues(
    lambda server_id: Worker.objects.filter(server=server_id, gone=False).values_list(
        "pk", "phase", "generation__job_id", "generation__number", "rank"
    )
)
_HAS_WORKERS_AND_CLEARS = PreparedValues(
    lambda server_id: Server.objects.filter(pk=server_id).values_list(
        Exists(Worker.objects.filter(server=server_id, gone=False)),
        Exists(Assignment.objects.filter(gpu__server=server_id, state=AssignmentState.CLEARING)),
    )
)


_CONCERNED = PreparedRows(
    lambda job_ids: Job.objects.filter(pk__any_of=job_ids).select_related("checkpoint").order_by("pk")
)


@dataclass(frozen=True)
class WorkerChanges:
    """What a report tells new. ``changed``: entries with another phase; ``vanished``: keys and places of
    workers that it lacks; ``clearing``: GPUs of this server are being cleared."""

    reported: ReportedWorkers
    changed: Mapping[Place, Mapping[str, Any]]
    vanished: Mapping[int, Place]
    clearing: bool

    def __bool__(self) -> bool:
        return bool(self.changed or self.vanished or self.clearing)


def changes_of_workers(agent: Agent, reported: ReportedWorkers) -> WorkerChanges:
    """Return the changes of this server's workers. An unclear list makes no worker gone and frees no GPU."""
    ((has_workers, clearing),) = _HAS_WORKERS_AND_CLEARS.ask(agent.server_id)
    rows = _KNOWN.ask(agent.server_id) if has_workers else []  # an idle server has none
    known = {(job, number, rank): (pk, phase) for pk, phase, job, number, rank in rows}
    listed = reported.by_place
    changed = {
        place: entry for place, entry in listed.items() if known.get(place, (0, ""))[1] != entry["phase"]
    }
    vanished = {pk: place for place, (pk, _) in known.items() if place not in listed}
    if reported.unclear:
        return WorkerChanges(reported, changed, {}, False)
    return WorkerChanges(reported, changed, vanished, clearing)


def apply_workers(agent: Agent, changes: WorkerChanges, cluster: Cluster, now: datetime) -> None:
    """Store changes of this server's workers and advance their jobs."""
    clearing = changes.clearing
    with transaction.atomic():
        lock_cluster(cluster.pk)
        touched = _note_workers(agent, changes.changed, now)
        if changes.vanished:
            Worker.objects.filter(pk__in=changes.vanished).update(gone=True, changed_at=now)
            touched |= {job_id for job_id, _, _ in changes.vanished.values()}
        freed_for = release_cleared(agent, changes.reported.alive) if clearing else set()
        for job_id in freed_for:
            for generation in Generation.objects.filter(job_id=job_id, held_at=None).exclude(
                state=GenerationState.RETIRED
            ):
                hold_gpus(generation)
        for job in _CONCERNED.ask(list(touched | freed_for)):
            with by_itself("advancing a job", job=job.pk):
                advance(job, cluster)
        advance_recoveries(cluster, touched | freed_for)
        if clearing:
            wake("plan", trigger="GPUs were freed")
            if agent.server.lending_state == LendingState.RECLAIMING:
                wake("orchestrate")
            planning_fact_changed(cluster)


def _note_workers(agent: Agent, entries: Mapping[Place, Mapping[str, Any]], now: datetime) -> set[str]:
    """Store these workers as reported. Return the ids of their jobs. The caller holds the cluster's row."""
    if not entries:
        return set()
    generations = {
        (generation.job_id, generation.number): generation
        for generation in Generation.objects.filter(
            job__in={job_id for job_id, _, _ in entries}, number__in={number for _, number, _ in entries}
        ).only("job_id", "number", "created_at")
    }
    rows = Worker.objects.filter(generation__in=[generation.pk for generation in generations.values()])
    known = {(worker.generation_id, worker.rank): worker for worker in rows}
    changed, new, touched = [], [], set()
    for (job_id, number, rank), entry in entries.items():
        generation = generations.get((job_id, number))
        if generation is None:
            continue
        worker = known.get((generation.pk, rank))
        if worker is None:
            new.append(worker := Worker(generation=generation, rank=rank))
        else:
            changed.append(worker)
        worker.server_id = agent.server_id
        worker.gone, worker.changed_at = False, now
        for name in ("key", "gpu_index", "phase", "exit"):
            setattr(worker, name, entry[name])
        if entry["ready_age_seconds"] is not None:
            # An agent cannot report a worker as ready before its generation was created.
            ready_at = now - timedelta(seconds=entry["ready_age_seconds"])
            worker.ready_at = max(ready_at, generation.created_at)
        touched.add(job_id)
    Worker.objects.bulk_create(new)
    update_rows(changed, ["server", "gone", "changed_at", "key", "gpu_index", "phase", "exit", "ready_at"])
    return touched
