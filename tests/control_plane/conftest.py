"""A cluster that plans at every look, users that submit to it, and owned and borrowed servers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from math import inf
from typing import Any

import pytest
from django.utils import timezone

from cluster.models import Cluster, Gpu
from lending.models import InferenceCluster
from lending.services.inference_clusters import inference_cluster_create
from projects.models import Membership, Role
from scheduling.choices import CurveState
from scheduling.models import CurveLevel, FunctionVersion, Job
from scheduling.services.planning import planning
from scheduling.services.requests.jobs import JobRequest, job_submit
from tests.control_plane.simulated_agent import SimulatedAgent
from tests.control_plane.simulated_time import SimulatedTime
from tests.factories import FunctionVersionFactory, MembershipFactory, UserFactory

#: Iterations a second by number of GPUs: a little less than linear.
SPEED = {1: 10.0, 2: 19.0, 4: 34.0, 8: 60.0}


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> SimulatedTime:
    """A clock that advances only by a test or `settle`, so that deadlines do not depend on the machine.
    Passes of the planner do not end early on a slow machine either."""
    monkeypatch.setattr(planning, "DECIDING_AGAIN_SECONDS", inf)
    monkeypatch.setattr(planning, "SETTING_ASIDE_SECONDS", inf)
    return SimulatedTime(monkeypatch)


@pytest.fixture
def cluster(db: None) -> Cluster:
    return Cluster.objects.create(
        name="default", slot_seconds=0.001, promise_margin=0.0, offer_hold_seconds=60.0
    )


@pytest.fixture
def version(cluster: Cluster) -> FunctionVersion:
    created: FunctionVersion = FunctionVersionFactory.create()
    return created


@pytest.fixture
def curves_known() -> bool:
    """Return whether functions of submitted jobs are measured already. Modules about measuring override it;
    single submissions pass ``measured=False``."""
    return True


@pytest.fixture
def submit(version: FunctionVersion, curves_known: bool) -> Callable[..., Job]:
    member: Membership = MembershipFactory.create(project=version.function.project, role=Role.OWNER)

    def submit_one(
        service_class: str = "slo", *, seconds: float | None = None, iterations: int = 1000, **fields: Any
    ) -> Job:
        is_measured = fields.pop("measured", curves_known)
        deadline = None if seconds is None else timezone.now() + timedelta(seconds=seconds)
        request = JobRequest(
            function_version=fields.pop("version", version),
            name=fields.pop("name", "job"),
            hyperparameters={"global_batch_size": fields.pop("batch", 64)},
            max_iterations=iterations,
            service_class=service_class,
            deadline_at=deadline,
            **fields,
        )
        job = job_submit(project=version.function.project, owner=member.user, request=request)
        if is_measured:
            _measure(job)
        return job

    return submit_one


def _measure(job: Job) -> None:
    """Store the profile on all GPUs of the cluster, unless the function has one."""
    curve = job.curve
    assert curve is not None
    if curve.state != CurveState.UNKNOWN:
        return
    most = Gpu.objects.filter(kind=curve.gpu_kind).count()
    CurveLevel.objects.bulk_create(
        CurveLevel(
            curve=curve,
            gpus=gpus,
            iterations_per_second=rate,
            profiled_iterations_per_second=rate,
            train_seconds=0.1,
            profiled_train_seconds=0.1,
            pause_seconds=1.0,
        )
        for gpus, rate in SPEED.items()
        if gpus <= most
    )
    curve.state, curve.complete, curve.measured_at = CurveState.READY, True, timezone.now()
    curve.save(update_fields=["state", "complete", "measured_at"])


@pytest.fixture
def inference(cluster: Cluster) -> InferenceCluster:
    return inference_cluster_create(
        name="serving",
        actor=UserFactory.create(),
        settings={"headroom_fraction": 0.0, "minimum_hold_seconds": 0.0},
    )


@pytest.fixture
def owned(cluster: Cluster) -> SimulatedAgent:
    return SimulatedAgent.enrol("node-1", 4, SPEED)


@pytest.fixture
def borrowed(inference: InferenceCluster) -> tuple[SimulatedAgent, SimulatedAgent]:
    return (
        SimulatedAgent.enrol("serving-1", 4, SPEED, inference),
        SimulatedAgent.enrol("serving-2", 4, SPEED, inference),
    )
