"""Rows for tests, each valid by default. A test states what it is about; the rest is filled in here."""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

import factory
from django.contrib.auth.hashers import make_password
from django.utils import timezone
from factory.django import DjangoModelFactory

from cluster.models import Agent, Cluster, Gpu, Server, UtilisationSample
from lending.models import InferenceCluster
from projects.models import ApiToken, Membership, Project, Role, User, token_digest
from scheduling.choices import AssignmentState, CurveState, GenerationState, Goal, JobState, ServiceClass
from scheduling.core.runtime_plans.choosing import choose_runtime_plan
from scheduling.models import (
    Artifact,
    Assignment,
    Bundle,
    Checkpoint,
    CurveLevel,
    Decision,
    Function,
    FunctionVersion,
    Generation,
    Job,
    JobEvent,
    JobMetric,
    LogChunk,
    Offer,
    ScalingCurve,
)
from simulation.models import SimulationRun, SimulationStudy

PASSWORD = "correct horse battery staple"


@lru_cache
def _hashed_password() -> str:
    return make_password(PASSWORD)


class UserFactory(DjangoModelFactory[User]):
    class Meta:
        model = User
        skip_postgeneration_save = True

    username = factory.Sequence(lambda n: f"person-{n}")
    password = factory.LazyFunction(_hashed_password)


class ProjectFactory(DjangoModelFactory[Project]):
    class Meta:
        model = Project

    name = factory.Sequence(lambda n: f"project-{n}")


class MembershipFactory(DjangoModelFactory[Membership]):
    class Meta:
        model = Membership

    project = factory.SubFactory(ProjectFactory)
    user = factory.SubFactory(UserFactory)
    role = Role.MEMBER


class ClusterFactory(DjangoModelFactory[Cluster]):
    class Meta:
        model = Cluster
        django_get_or_create = ("name",)

    name = "default"


class ServerFactory(DjangoModelFactory[Server]):
    """A server with `gpus` emulated GPUs and an agent that has just reported."""

    class Meta:
        model = Server
        skip_postgeneration_save = True

    cluster = factory.SubFactory(ClusterFactory)
    name = factory.Sequence(lambda n: f"node-{n}")
    address = "127.0.0.1"
    port_first = 21000
    port_last = 21999
    hostname = factory.SelfAttribute("name")
    cpu_cores = 16
    memory_bytes = 64 * 1024**3
    sandbox = "namespaces"

    @factory.post_generation
    def gpus(
        self: Any, create: bool, extracted: int | None, kind: str = "emulated-a100", emulated: bool = True
    ) -> None:
        for index in range(4 if extracted is None else extracted):
            Gpu.objects.create(
                server=self,
                index=index,
                kind=kind,
                emulated=emulated,
                uuid=f"{self.name}-{index}",
                memory_bytes=40 * 1024**3,
            )

    @factory.post_generation
    def agent(self: Any, create: bool, extracted: str | None, **values: Any) -> None:
        digest = token_digest(extracted or f"credential-of-{self.name}")
        values = {"last_report_at": timezone.now(), "version": "0.1.0", **values}
        Agent.objects.create(server=self, credential_digest=digest, **values)


class InferenceClusterFactory(DjangoModelFactory[InferenceCluster]):
    """An inference cluster; `credential` is that of its scheduler, of which the row stores the digest."""

    class Meta:
        model = InferenceCluster

    class Params:
        credential = factory.LazyAttribute(lambda made: f"ps_credential_of_{made.name}")

    name = factory.Sequence(lambda n: f"serving-cluster-{n}")
    cluster = factory.SubFactory(ClusterFactory)
    account = factory.SubFactory(UserFactory, is_active=False)
    credential_digest = factory.LazyAttribute(lambda made: token_digest(made.credential))


class InferenceServerFactory(ServerFactory):
    """A server of an inference cluster, at home."""

    inference_cluster = factory.SubFactory(InferenceClusterFactory)
    lending_state = "inference"
    whitelist = "inference"


class FunctionFactory(DjangoModelFactory[Function]):
    class Meta:
        model = Function

    project = factory.SubFactory(ProjectFactory)
    name = factory.Sequence(lambda n: f"classifier-{n}")


class BundleFactory(DjangoModelFactory[Bundle]):
    class Meta:
        model = Bundle
        django_get_or_create = ("digest",)

    content = factory.Sequence(lambda n: f"# version {n}\n".encode())
    digest = factory.LazyAttribute(lambda bundle: hashlib.sha256(bundle.content).hexdigest())
    size_bytes = factory.LazyAttribute(lambda bundle: len(bundle.content))


class FunctionVersionFactory(DjangoModelFactory[FunctionVersion]):
    class Meta:
        model = FunctionVersion

    function = factory.SubFactory(FunctionFactory)
    number = 1
    bundle = factory.SubFactory(BundleFactory)
    entry = "classifier:Classifier"


class ScalingCurveFactory(DjangoModelFactory[ScalingCurve]):
    """A measured curve; `levels` maps GPUs to iterations per second."""

    class Meta:
        model = ScalingCurve
        skip_postgeneration_save = True

    key = factory.Sequence(lambda n: hashlib.sha256(f"curve-{n}".encode()).hexdigest())
    function_digest = factory.Sequence(lambda n: hashlib.sha256(f"function-{n}".encode()).hexdigest())
    gpu_kind = "emulated-a100"
    state = CurveState.READY
    complete = True

    @factory.post_generation
    def levels(self: Any, create: bool, extracted: dict[int, float] | None, **_: Any) -> None:
        for gpus, rate in ({1: 4.0, 2: 7.2, 4: 12.4, 8: 18.5} if extracted is None else extracted).items():
            CurveLevel.objects.create(
                curve=self,
                gpus=gpus,
                iterations_per_second=rate,
                profiled_iterations_per_second=rate * 0.97,
                samples=12,
                source="live" if gpus <= 4 else "profiled",
            )


class JobFactory(DjangoModelFactory[Job]):
    class Meta:
        model = Job

    cluster = factory.SubFactory(ClusterFactory)
    project = factory.SubFactory(ProjectFactory)
    owner = factory.SubFactory(UserFactory)
    function_version = factory.SubFactory(
        FunctionVersionFactory, function__project=factory.SelfAttribute("...project")
    )
    name = factory.Sequence(lambda n: f"job {n}")
    hyperparameters = factory.LazyFunction(lambda: {"global_batch_size": 64, "learning_rate": 0.01})
    global_batch_size = 64
    max_iterations = 1000
    service_class = ServiceClass.BEST_EFFORT
    state = JobState.SUBMITTED
    finished_at = factory.LazyAttribute(
        lambda job: timezone.now() if job.state in ("declined", "completed", "failed", "cancelled") else None
    )


class GenerationFactory(DjangoModelFactory[Generation]):
    """A live generation on `gpus` (a list of Gpu rows), which it holds."""

    class Meta:
        model = Generation
        skip_postgeneration_save = True

    job = factory.SubFactory(JobFactory)
    number = 1
    state = GenerationState.LIVE
    goal = Goal.TRAIN
    epoch = 1
    world_size = 1
    master_server = factory.SubFactory(ServerFactory)
    master_port = 21000
    secret = "s" * 32
    runtime_plan = factory.LazyFunction(lambda: choose_runtime_plan(["a server"]).to_message())
    live_at = factory.LazyFunction(timezone.now)

    @factory.post_generation
    def gpus(self: Any, create: bool, extracted: list[Gpu] | None, state: str = AssignmentState.HELD) -> None:
        for rank, gpu in enumerate(extracted or []):
            Assignment.objects.create(
                generation=self,
                job=self.job,
                gpu=gpu,
                rank=rank,
                handover_port=21001 + rank,
                state=state,
                held_at=timezone.now(),
            )


class JobEventFactory(DjangoModelFactory[JobEvent]):
    class Meta:
        model = JobEvent

    job = factory.SubFactory(JobFactory)
    kind = "admitted"
    message = "Admitted: the deadline can be promised."


class JobMetricFactory(DjangoModelFactory[JobMetric]):
    class Meta:
        model = JobMetric

    job = factory.SubFactory(JobFactory)
    generation = 1
    iteration = factory.Sequence(lambda n: n)
    values = factory.LazyAttribute(lambda metric: {"loss": 2.0 / (1 + metric.iteration / 100)})
    iterations_per_second = 4.0
    gpus = 1


class LogChunkFactory(DjangoModelFactory[LogChunk]):
    class Meta:
        model = LogChunk

    job = factory.SubFactory(JobFactory)
    generation = 1
    rank = 0
    offset = factory.Sequence(lambda n: n * 100)
    text = factory.Sequence(lambda n: f"line {n}\n")


class CheckpointFactory(DjangoModelFactory[Checkpoint]):
    class Meta:
        model = Checkpoint

    job = factory.SubFactory(JobFactory)
    generation = 1
    iteration = factory.Sequence(lambda n: n * 10)
    uri = factory.LazyAttribute(lambda point: f"jobs/{point.job.id}/checkpoints/1-{point.iteration}")
    complete_at = factory.LazyFunction(timezone.now)
    size_bytes = 1_400_000
    reason = "periodic"


class ArtifactFactory(DjangoModelFactory[Artifact]):
    class Meta:
        model = Artifact

    job = factory.SubFactory(JobFactory)
    name = "weights.pt"
    uri = factory.LazyAttribute(lambda artifact: f"jobs/{artifact.job.id}/artifacts/1/{artifact.name}")
    size_bytes = 1_400_000
    sha256 = "0" * 64


class DecisionFactory(DjangoModelFactory[Decision]):
    class Meta:
        model = Decision

    cluster = factory.SubFactory(ClusterFactory)
    kind = Decision.Kind.ADMISSION
    policy = "punctual"
    epoch = 1
    planning_version = factory.Sequence(lambda n: n)
    trigger = "job submitted"
    compute_seconds = 0.004
    snapshot = b"compressed"


class OfferFactory(DjangoModelFactory[Offer]):
    class Meta:
        model = Offer

    job = factory.SubFactory(JobFactory, state=JobState.DECLINED)
    project = factory.SelfAttribute("job.project")
    deadline_at = factory.LazyFunction(lambda: timezone.now() + timedelta(minutes=30))
    plan = factory.LazyFunction(dict)
    valid_until = factory.LazyFunction(lambda: timezone.now() + timedelta(minutes=2))


class UtilisationSampleFactory(DjangoModelFactory[UtilisationSample]):
    class Meta:
        model = UtilisationSample

    cluster = factory.SubFactory(ClusterFactory)
    total = 8
    promised = 4
    idle = 4


class ApiTokenFactory(DjangoModelFactory[ApiToken]):
    """`secret` is the token itself; the row stores only its digest."""

    class Meta:
        model = ApiToken

    class Params:
        secret = factory.Sequence(lambda n: f"pt_secret_{n:06d}")

    user = factory.SubFactory(UserFactory)
    name = "laptop"
    prefix = factory.Sequence(lambda n: f"pt_{n:06d}")
    digest = factory.LazyAttribute(lambda token: token_digest(token.secret))


def stored_plan(
    pieces: list[tuple[float, float, int]], finish_seconds: float, now: datetime | None = None
) -> dict[str, Any]:
    """Return a plan as jobs store it. Pieces are (start, end, GPUs); the finish is in seconds from `now`."""
    base = (now or timezone.now()).timestamp()
    return {
        "start": [base + start for start, _, _ in pieces],
        "end": [base + end for _, end, _ in pieces],
        "gpus": [gpus for _, _, gpus in pieces],
        "finish_at": base + finish_seconds,
    }


class SimulationStudyFactory(DjangoModelFactory[SimulationStudy]):
    """A small synthetic workload on four servers."""

    class Meta:
        model = SimulationStudy

    name = factory.Sequence(lambda n: f"study {n}")
    source = "trace"
    trace = "elasticflow"
    gpus_per_server = 4
    slot_seconds = 60.0
    pauses = "measured"
    fill = "uniform"
    limit_jobs = 12


class SimulationRunFactory(DjangoModelFactory[SimulationRun]):
    """A queued run, or with `state` one that has ended or runs."""

    class Meta:
        model = SimulationRun

    study = factory.SubFactory(SimulationStudyFactory)
    policy = "punctual"
    servers = 4
    finished_at = factory.LazyAttribute(
        lambda run: timezone.now() if getattr(run, "state", "") in ("done", "cancelled", "failed") else None
    )
    summary = factory.LazyAttribute(lambda run: {} if getattr(run, "state", "") == "done" else None)
    results_key = factory.LazyAttribute(
        lambda run: f"simulations/{run.study.pk}/run" if getattr(run, "state", "") == "done" else ""
    )
    error = factory.LazyAttribute(lambda run: "it broke" if getattr(run, "state", "") == "failed" else "")
    lease_token = factory.LazyAttribute(lambda run: "t" if getattr(run, "state", "") == "running" else "")
    lease_expires_at = factory.LazyAttribute(
        lambda run: timezone.now() + timedelta(seconds=30) if getattr(run, "state", "") == "running" else None
    )
