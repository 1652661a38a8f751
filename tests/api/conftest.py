"""Users and the objects that they can see, for tests of the API."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import cache
from django.db import transaction
from django.utils import timezone
from rest_framework.test import APIClient

from cluster.models import Server
from lending.models import ForecasterTraining, InferenceCluster, LoanOrder, ReclaimOrder
from projects.models import ApiToken, Invitation, Project, Role, User
from scheduling.models import Decision, FunctionVersion, Job
from simulation.models import SimulationRun, SimulationStudy
from tests import factories as make
from tests.control_plane.conftest import clock
from tests.plugins.remembered import Remembered

__all__ = ["clock"]  # a fixture

SOURCE = '''
from punctual import TrainingFunction


class Classifier(TrainingFunction):
    """Tells shapes apart."""

    speed_neutral = {"learning_rate", "momentum"}

    def init_model(self): ...
    def init_dataset(self): ...
    def init_optimizer(self, model): ...
    def train(self, batch, model): ...
'''


@dataclass
class World:
    """A project with an owner, a colleague (member) and a viewer; a stranger with a project of her own; an
    operator."""

    project: Project
    owner: User
    colleague: User
    viewer: User
    stranger: User
    operator: User
    foreign_project: Project
    foreign_job: Job
    server: Server
    version: FunctionVersion
    job: Job
    decision: Decision
    token: ApiToken
    study: SimulationStudy
    queued_run: SimulationRun
    done_run: SimulationRun
    inference: InferenceCluster
    loan_order: LoanOrder
    reclaim_order: ReclaimOrder
    training: ForecasterTraining
    invitation: Invitation
    #: Ids of a deployment and of its token, once a test has made them.
    deployed: dict[str, Any] = field(default_factory=dict)

    def client(self, user: User | None) -> APIClient:
        """Return a client with a token of the user; None: no token."""
        client = APIClient()
        if user is not None:
            client.credentials(HTTP_AUTHORIZATION=self.authorization(user))
        return client

    def authorization(self, user: User) -> str:
        """Return the header of a fresh token of the user."""
        return f"Bearer {_secret(make.ApiTokenFactory.create(user=user))}"

    def body(self, **changes: Any) -> dict[str, Any]:
        """Return the body of a valid submission."""
        return {
            "function": self.version.function.name,
            "project": self.project.name,
            "hyperparameters": {"global_batch_size": 32, "learning_rate": 0.1},
            "termination": {"max_iterations": 100},
            **changes,
        }


def _secret(token: ApiToken) -> str:
    number = int(token.prefix.removeprefix("pt_"))
    return f"pt_secret_{number:06d}"


@pytest.fixture(scope="session")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Remembered[tuple[World, Path]]:
    """Worlds, each with the folder of its files."""

    def build() -> tuple[World, Path]:
        folder = tmp_path_factory.mktemp("world")
        return _world(folder), folder

    return Remembered(build)


@pytest.fixture
def world(db: None, settings: Any, tmp_path: Path, worlds: Remembered[tuple[World, Path]]) -> World:
    settings.CHECKPOINT_URL = f"file://{tmp_path}/store"
    made, folder = worlds()
    shutil.copytree(folder / "store", tmp_path / "store")
    return made


def build_world(settings: Any, folder: Path) -> World:
    """Build a world whose files are in this folder."""
    settings.CHECKPOINT_URL = f"file://{folder}/store"
    return _world(folder)


def _world(folder: Path) -> World:
    people = {
        name: make.UserFactory.create(username=name) for name in ("owner", "colleague", "viewer", "stranger")
    }
    operator = make.UserFactory.create(username="operator", is_operator=True)
    project = make.ProjectFactory.create(name="vision")
    foreign_project = make.ProjectFactory.create(name="elsewhere")
    for name, role in (("owner", Role.OWNER), ("colleague", Role.MEMBER), ("viewer", Role.VIEWER)):
        make.MembershipFactory.create(project=project, user=people[name], role=role)
    make.MembershipFactory.create(
        project=project, user=make.UserFactory.create(username="guest"), role=Role.VIEWER
    )
    make.MembershipFactory.create(project=foreign_project, user=people["stranger"], role=Role.OWNER)
    server = make.ServerFactory.create(name="node-a", gpus=4)
    version = make.FunctionVersionFactory.create(function__project=project, function__name="classifier")
    curve = make.ScalingCurveFactory.create()
    job = make.JobFactory.create(
        project=project,
        owner=people["owner"],
        function_version=version,
        curve=curve,
        state="running",
        decided_at=timezone.now(),
        started_at=timezone.now(),
    )
    make.GenerationFactory.create(
        job=job, master_server=server, world_size=2, gpus=list(server.gpus.all()[:2])
    )
    foreign_job = make.JobFactory.create(project=foreign_project, owner=people["stranger"], state="running")
    make.GenerationFactory.create(
        job=foreign_job, master_server=server, world_size=1, gpus=list(server.gpus.all()[3:])
    )
    decision = make.DecisionFactory.create(
        snapshot=b"packed",
        trigger=f"submitted {foreign_job.pk}",
        summary={
            "gpu_kind": "emulated-a100",
            "verdicts": [_verdict(job), _verdict(foreign_job)],
            "changes": [],
            "at_risk": [foreign_job.pk],
            "notes": [f"{foreign_job.pk} is at risk"],
        },
    )
    decision.jobs.set([job, foreign_job])
    _leave_records(job, decision, folder)
    inference, loan_order, reclaim_order, training = _inference_side()
    study = make.SimulationStudyFactory.create(comparison_key="simulations/1/comparison-1")
    done_run = make.SimulationRunFactory.create(study=study, policy="edf", state="done")
    _leave_results(study, done_run, folder)
    return World(
        project=project,
        operator=operator,
        foreign_project=foreign_project,
        foreign_job=foreign_job,
        server=server,
        version=version,
        job=job,
        decision=decision,
        token=make.ApiTokenFactory.create(user=people["owner"]),
        study=study,
        queued_run=make.SimulationRunFactory.create(study=study),
        done_run=done_run,
        inference=inference,
        loan_order=loan_order,
        reclaim_order=reclaim_order,
        training=training,
        invitation=Invitation.objects.create(
            project=project,
            username="somebody",
            invited_by=people["owner"],
            expires_at=timezone.now() + timedelta(days=1),
        ),
        owner=people["owner"],
        colleague=people["colleague"],
        viewer=people["viewer"],
        stranger=people["stranger"],
    )


def _inference_side() -> tuple[InferenceCluster, LoanOrder, ReclaimOrder, ForecasterTraining]:
    """Create two servers at home in inference; one was lent once and returned."""
    inference = make.InferenceClusterFactory.create(name="serving")
    servers = [
        make.InferenceServerFactory.create(name=f"serving-{n}", inference_cluster=inference, gpus=0)
        for n in (1, 2)
    ]
    loan_order = LoanOrder.objects.create(
        inference_cluster=inference,
        source="scheduler",
        server_names=["serving-1"],
        state="done",
        finished_at=timezone.now(),
    )
    now = timezone.now()
    reclaim_order = ReclaimOrder.objects.create(
        inference_cluster=inference,
        source="scheduler",
        count=1,
        wanted_by=now,
        state="returned",
        begun_at=now,
        returned_at=now,
        choice={"method": "lyra", "jobs": ["somebodysjob"], "collateral_gpus": 0},
        outcome={"preempted_jobs": 1, "held_back_jobs": 2, "jobs": {"somebodysjob": "preempted"}},
    )
    reclaim_order.servers.create(server=servers[0], position=0, group="idle", begun_at=now, returned_at=now)
    training = ForecasterTraining.objects.create(inference_cluster=inference, forecaster="lstm")
    return inference, loan_order, reclaim_order, training


def _verdict(job: Job) -> dict[str, Any]:
    return {
        "job": job.pk,
        "admitted": True,
        "promised": False,
        "reason_code": "best_effort",
        "reason": "runs",
    }


def _leave_records(job: Job, decision: Decision, folder: Path) -> None:
    make.JobEventFactory.create(job=job, decision=decision)
    make.JobMetricFactory.create(job=job, iteration=1)
    make.LogChunkFactory.create(job=job, text="first\nsecond\n")
    make.CheckpointFactory.create(job=job)
    stored = folder / "store" / "jobs" / job.pk / "artifacts" / "1"
    stored.mkdir(parents=True)
    (stored / "weights.pt").write_bytes(b"weights" * 1000)
    make.ArtifactFactory.create(job=job, size_bytes=7000)


def _leave_results(study: SimulationStudy, run: SimulationRun, folder: Path) -> None:
    compared = folder / "store" / study.comparison_key
    compared.mkdir(parents=True)
    comparison: dict[str, Any] = {"runs": [], "figures": {}, "table": [], "warnings": []}
    (compared / "comparison.json.gz").write_bytes(gzip.compress(json.dumps(comparison).encode()))
    (compared / "report.html.gz").write_bytes(gzip.compress(b"<!doctype html>"))
    results = folder / "store" / run.results_key
    results.mkdir(parents=True)
    (results / "jobs.parquet").write_bytes(b"PAR1")


@pytest.fixture(autouse=True)
def _unthrottled() -> None:
    """Clear the throttles, so that requests of one test do not count in the next."""
    cache.clear()


@contextmanager
def undone() -> Iterator[None]:
    """Undo the block's writes."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)
