"""A busy cluster as rows: two servers, jobs in every state, a colleague's and a stranger's project."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from cluster.models import Server, UtilisationSample
from projects.models import Project, Role, User
from scheduling.choices import AssignmentState, GenerationState, Goal, JobState, PromiseOutcome, ServiceClass
from scheduling.models import Assignment, Generation, Job, JobMetric, Recovery
from tests import factories
from tests.factories import stored_plan


@dataclass(frozen=True, slots=True)
class Scenario:
    """The objects that tests use by name."""

    owner: User
    operator: User
    stranger: User
    project: Project
    running: Job
    spanning: Job
    waiting: Job
    declined: Job
    completed: Job
    failed: Job
    foreign: Job
    servers: tuple[Server, Server]


def build(now: datetime | None = None) -> Scenario:
    """Create all rows. Called once per test or once for screenshots."""
    now = now or timezone.now()
    owner = factories.UserFactory.create(username="ada")
    operator = factories.UserFactory.create(username="olga", is_operator=True)
    stranger = factories.UserFactory.create(username="sten")
    project = factories.ProjectFactory.create(name="vision")
    other = factories.ProjectFactory.create(name="speech")
    factories.MembershipFactory.create(project=project, user=owner, role=Role.OWNER)
    factories.MembershipFactory.create(project=other, user=stranger, role=Role.OWNER)
    servers = (
        factories.ServerFactory.create(name="node-a", gpus=4, address="10.0.0.11"),
        factories.ServerFactory.create(name="node-b", gpus=4, address="10.0.0.12", sandbox="none"),
    )
    function = factories.FunctionVersionFactory.create(
        function__project=project, function__name="image-classifier"
    )
    common: dict[str, Any] = {"project": project, "owner": owner, "function_version": function}
    running = _running(now, common, servers)
    spanning = _spanning(now, common, servers)
    waiting = _waiting(now, common)
    declined = _declined(now, common)
    completed = _completed(now, common)
    failed = _failed(now, common)
    foreign = _foreign(now, other, stranger, servers)
    _samples(now)
    _decisions(now, running, spanning, declined, foreign)
    return Scenario(
        owner,
        operator,
        stranger,
        project,
        running,
        spanning,
        waiting,
        declined,
        completed,
        failed,
        foreign,
        servers,
    )


def _trained(
    job: Job,
    now: datetime,
    phases: list[tuple[float, float | None, int, str]],
    gpus: list[Any],
    rate: float = 4.0,
) -> None:
    """Generations of a job; phases are (start, end, GPUs, reason) in seconds from now, the last one live."""
    for number, (start, end, count, reason) in enumerate(phases, start=1):
        live = end is None
        generation: Generation = factories.GenerationFactory.create(
            job=job,
            number=number,
            world_size=count,
            reason=reason,
            start_iteration=max(0, int((start - phases[0][0]) * rate)),
            state=GenerationState.LIVE if live else GenerationState.RETIRED,
            goal=Goal.TRAIN if live else Goal.STOP,
            live_at=now + timedelta(seconds=start),
            retired_at=None if end is None else now + timedelta(seconds=end),
            master_server=gpus[0].server,
        )
        for rank, gpu in enumerate(gpus[:count]):
            Assignment.objects.create(
                generation=generation,
                job=job,
                gpu=gpu,
                rank=rank,
                state=AssignmentState.HELD if live else AssignmentState.RELEASED,
                held_at=generation.live_at,
            )
        job.last_generation = number
    job.save()


def _metrics(job: Job, now: datetime, first_seconds: float, until: int, rate: float, gpus: int) -> None:
    JobMetric.objects.bulk_create(
        factories.JobMetricFactory.build(
            job=job,
            iteration=iteration,
            generation=max(1, job.last_generation),
            values={
                "loss": 2.3 * math.exp(-iteration / 400) + 0.05 * math.sin(iteration / 7),
                "accuracy": 1 - 0.9 * math.exp(-iteration / 350),
            },
            iterations_per_second=rate * (1 + 0.03 * math.sin(iteration / 11)),
            gpus=gpus,
            measured_at=now + timedelta(seconds=first_seconds + iteration / rate),
        )
        for iteration in range(0, until + 1, max(1, until // 120))
    )


def _events(job: Job, now: datetime, *lines: tuple[float, str, str]) -> None:
    for seconds, kind, message in lines:
        factories.JobEventFactory.create(
            job=job, kind=kind, message=message, happened_at=now + timedelta(seconds=seconds)
        )


def _running(now: datetime, common: dict[str, Any], servers: tuple[Server, Server]) -> Job:
    curve = factories.ScalingCurveFactory.create()
    job = factories.JobFactory.create(
        **common,
        curve=curve,
        name="digits, wide network",
        labels={"team": "perception"},
        service_class=ServiceClass.SLO,
        state=JobState.RUNNING,
        promised=True,
        promise_outcome=PromiseOutcome.OPEN,
        deadline_at=now + timedelta(seconds=240),
        submitted_at=now - timedelta(seconds=240),
        decided_at=now - timedelta(seconds=236),
        started_at=now - timedelta(seconds=230),
        max_iterations=2000,
        iterations_done=1012,
        iterations_reported_at=now,
        iterations_per_second=7.2,
        plan=stored_plan([(-5, 60, 2), (60, 130, 4)], 118, now),
        verdict={
            "decision": "admitted",
            "reason_code": "fits",
            "reason": "2 GPUs until the deadline are enough (2,000 iterations at 7.20 per second take 278 s "
            "of the 480 s that are left), and no earlier promise is touched.",
            "minimum_satisfactory_share": [
                {
                    "start": (now - timedelta(seconds=236)).isoformat(),
                    "end": (now + timedelta(seconds=42)).isoformat(),
                    "gpus": 2,
                }
            ],
            "planned_finish_at": (now + timedelta(seconds=118)).isoformat(),
        },
    )
    gpus = list(servers[0].gpus.all())
    _trained(
        job,
        now,
        [
            (-230, -160, 2, "admitted with its minimum satisfactory share"),
            (-160, -70, 4, "GPUs were idle: 4 gain most"),
            (-70, None, 2, "gives 2 GPUs to a tighter deadline"),
        ],
        gpus,
        rate=4.4,
    )
    _metrics(job, now, -230, 1012, 4.4, 2)
    _events(
        job,
        now,
        (-240, "submitted", "Submitted by ada with a hard deadline in 8 min."),
        (-236, "admitted", "Admitted: 2 GPUs until the deadline are enough. Planned finish 42 s from now."),
        (-230, "started", "Training on 2 GPUs of node-a."),
        (
            -160,
            "rescaled",
            "2 to 4 GPUs: they were idle, and this job gains most (5.2 iterations/s). Paused for 1.3 s.",
        ),
        (
            -70,
            "rescaled",
            "4 to 2 GPUs: a tighter deadline needs 2. The promise stands with 2 min 2 s of slack.",
        ),
    )
    for number in range(24):
        factories.LogChunkFactory.create(
            job=job,
            rank=number % 2,
            offset=number * 60,
            text=f"iteration {number * 42:5d}  loss {2.3 / (1 + number / 6):.4f}\n",
        )
    for iteration in (250, 500, 750, 1000):
        factories.CheckpointFactory.create(job=job, iteration=iteration)
    return job


def _spanning(now: datetime, common: dict[str, Any], servers: tuple[Server, Server]) -> Job:
    job = factories.JobFactory.create(
        **common,
        curve=factories.ScalingCurveFactory.create(levels={1: 3.0, 2: 5.6, 4: 10.1}),
        name="character model",
        service_class=ServiceClass.SLO,
        state=JobState.RUNNING,
        promised=True,
        at_risk=True,
        promise_outcome=PromiseOutcome.OPEN,
        deadline_at=now + timedelta(seconds=95),
        submitted_at=now - timedelta(seconds=120),
        started_at=now - timedelta(seconds=110),
        max_iterations=1500,
        iterations_done=620,
        iterations_reported_at=now,
        iterations_per_second=10.0,
        plan=stored_plan([(-5, 110, 4)], 107, now),
        verdict={
            "decision": "admitted",
            "reason": "4 GPUs until the deadline are needed and free.",
        },
    )
    gpus = [*list(servers[0].gpus.all())[2:], *list(servers[1].gpus.all())[:2]]
    _trained(job, now, [(-110, None, 4, "admitted with its minimum satisfactory share")], gpus)
    _metrics(job, now, -110, 620, 5.6, 4)
    return job


def _waiting(now: datetime, common: dict[str, Any]) -> Job:
    factories.JobFactory.create(**common, name="recommender, new features", state=JobState.PROFILING,
                         service_class=ServiceClass.SLO, deadline_at=now + timedelta(minutes=30),
                         submitted_at=now - timedelta(seconds=9))  # fmt: skip
    return factories.JobFactory.create(
        **common,
        name="nightly ablation",
        state=JobState.SUSPENDED,
        service_class=ServiceClass.BEST_EFFORT,
        submitted_at=now - timedelta(minutes=14),
        started_at=now - timedelta(minutes=13),
        iterations_done=310,
        plan=stored_plan([(130, 400, 2)], 390, now),
        verdict={
            "decision": "admitted",
            "reason": "no deadline: the job runs on GPUs that no promise needs.",
        },
    )


def _declined(now: datetime, common: dict[str, Any]) -> Job:
    job = factories.JobFactory.create(
        **common,
        curve=factories.ScalingCurveFactory.create(),
        name="digits, by noon",
        service_class=ServiceClass.SLO,
        state=JobState.DECLINED,
        deadline_at=now + timedelta(seconds=60),
        submitted_at=now - timedelta(seconds=20),
        finished_at=now - timedelta(seconds=18),
        verdict={
            "decision": "declined",
            "reason_code": "capacity",
            "reason": "8 GPUs would be needed from now until the deadline, 2 are free of promises.",
        },
    )
    factories.OfferFactory.create(
        job=job, deadline_at=now + timedelta(minutes=11), valid_until=now + timedelta(seconds=100)
    )
    return job


def _completed(now: datetime, common: dict[str, Any]) -> Job:
    job = factories.JobFactory.create(
        **common,
        name="digits, baseline",
        service_class=ServiceClass.SLO,
        state=JobState.COMPLETED,
        promised=True,
        promise_outcome=PromiseOutcome.MET,
        deadline_at=now - timedelta(seconds=260),
        submitted_at=now - timedelta(minutes=12),
        started_at=now - timedelta(minutes=11),
        finished_at=now - timedelta(seconds=320),
        iterations_done=1000,
        final_metrics={"loss": 0.1182, "accuracy": 0.9641},
    )
    factories.ArtifactFactory.create(job=job)
    factories.ArtifactFactory.create(job=job, name="metrics.json", size_bytes=812)
    for minutes, outcome in ((20, "met"), (32, "met"), (47, "met"), (49, "void")):
        factories.JobFactory.create(**common, service_class=ServiceClass.SLO, state=JobState.COMPLETED,
        promised=True,
                             promise_outcome=outcome, deadline_at=now, name=f"sweep {minutes}",
                             iterations_done=1000,
                             submitted_at=now - timedelta(minutes=minutes),
                             started_at=now - timedelta(minutes=minutes),
                             void_reason="paused_by_owner" if outcome == "void" else "",
                             finished_at=now - timedelta(minutes=minutes // 4))  # fmt: skip
    return job


def _failed(now: datetime, common: dict[str, Any]) -> Job:
    return factories.JobFactory.create(
        **common,
        name="broken loader",
        state=JobState.FAILED,
        submitted_at=now - timedelta(minutes=40),
        started_at=now - timedelta(minutes=39),
        finished_at=now - timedelta(minutes=38),
        failure={
            "reason": "function_error",
            "message": "ValueError: expected 64 features, got 63",
            "traceback": 'Traceback (most recent call last):\n  File "loader.py", line 12, in '
            "__getitem__\nValueError: …",
        },
    )


def _foreign(now: datetime, project: Project, owner: User, servers: tuple[Server, Server]) -> Job:
    job = factories.JobFactory.create(
        project=project, owner=owner, name="secret speech model", state=JobState.RUNNING,
        submitted_at=now - timedelta(minutes=3), started_at=now - timedelta(minutes=2),
    )  # fmt: skip
    _trained(job, now, [(-120, None, 1, "best effort")], list(servers[1].gpus.all())[2:3])
    return job


def _samples(now: datetime) -> None:
    cluster = factories.ClusterFactory.create()
    samples = []
    for step in range(180):
        wave = math.sin(step / 14)
        uses = {
            "promised": 4 if wave > 0 else 2,
            "best_effort": 2 if wave > -0.6 else 1,
            "soft": 1 if wave > 0.7 else 0,
            "profiling": 1 if step % 45 < 5 else 0,
        }
        samples.append(
            UtilisationSample(
                cluster=cluster,
                taken_at=now - timedelta(seconds=5 * (180 - step)),
                total=8,
                idle=8 - sum(uses.values()),
                running_jobs=2 + (1 if wave > 0 else 0),
                waiting_jobs=1 + (2 if step % 60 < 12 else 0),
                **uses,
            )
        )
    UtilisationSample.objects.bulk_create(samples)


def _decisions(now: datetime, running: Job, spanning: Job, declined: Job, foreign: Job) -> None:
    decision = factories.DecisionFactory.create(
        decided_at=now - timedelta(seconds=70),
        kind="reallocation",
        trigger=f"job {spanning.id} was admitted",
        summary={
            "verdicts": [],
            "changes": [
                {"job": running.id, "kind": "shrink", "gpus_before": 4, "gpus_after": 2,
                 "reason": "Its promise holds with 2; the others go to a tighter deadline."},
                {"job": foreign.id, "kind": "start", "gpus_before": 0, "gpus_after": 1,
                "reason": "best effort"},
            ],
            "at_risk": [], "notes": [],
        },
    )  # fmt: skip
    decision.jobs.set([running, foreign])
    verdicts = factories.DecisionFactory.create(
        decided_at=now - timedelta(seconds=18),
        trigger=f"job {declined.id} was submitted",
        summary={
            "verdicts": [
                {"job": declined.id, "admitted": False, "reason_code": "capacity",
                 "reason": "8 GPUs would be needed from now until the deadline, 2 are free of promises."}
            ],
            "changes": [], "at_risk": [spanning.id], "notes": ["offer found after 6 attempts"],
        },
    )  # fmt: skip
    verdicts.jobs.set([declined, spanning])


def recovered(job: Job, **changes: Any) -> Recovery:
    """Record that a server of the job's was lost and that it trained again ten seconds later."""
    now = timezone.now()
    found: Recovery = Recovery.objects.create(
        **{
            "job": job,
            "failed_generation": 7,
            "recovering_generation": 8,
            "kind": "hardware",
            "outcome": "recovered",
            "phase": "running",
            "reason": "server node-a fell silent",
            "lost_servers": [{"server": 1, "name": "node-a", "silent_at": None, "fenced_at": None}],
            "sources": [{"rank": 0, "server": 0, "source": "durable", "holders": []}],
            "source": "durable",
            "iteration_reached": 53,
            "iteration_resumed": 50,
            "iterations_per_second": 2.0,
            "detected_at": now - timedelta(seconds=10),
            "frozen_at": now - timedelta(seconds=4),
            "loading_at": now - timedelta(seconds=3),
            "fenced_at": now - timedelta(seconds=4),
            "running_at": now,
            "ended_at": now,
            **changes,
        }
    )
    return found
