"""A function with experts is measured on worker counts that its experts and memory allow, promised, and
trained through growth, shrinking and a lost server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from cluster.models import Cluster, Gpu, Server
from scheduling.choices import GenerationState, JobState, PromiseOutcome, Purpose
from scheduling.models import CurveLevel, FunctionVersion, Generation, Job, ScalingCurve
from scheduling.services.agents.leases import expire_leases, reconcile
from scheduling.services.requests.jobs import request_of
from scheduling.services.requests.what_if import job_what_if
from scheduling.stored_verdict import StoredVerdict
from tests.control_plane.simulated_agent import SimulatedAgent, settle
from tests.control_plane.simulated_time import let_pass
from tests.factories import FunctionVersionFactory

pytestmark = pytest.mark.django_db(transaction=True)

Submit = Callable[..., Job]
SPEED = {1: 5.0, 2: 9.0, 3: 13.0, 4: 17.0, 6: 24.0, 8: 30.0, 12: 44.0}
GIB = 1 << 30


def sizes(
    *, dense: int, experts: int, expert_bytes: int, parameters: int = GIB, is_tiered: bool = False
) -> dict[str, Any]:
    """Return a worker's report on its model."""
    return {
        "parameter_bytes": parameters,
        "dense_state_bytes": dense,
        "layers": [
            {
                "experts": experts,
                "state_bytes": expert_bytes,
                "weight_bytes": expert_bytes // 4,
                "is_tiered": is_tiered,
            }
        ],
        "on_host": False,
    }


@pytest.fixture
def curves_known() -> bool:
    return False


@pytest.fixture
def mixture(version: FunctionVersion) -> FunctionVersion:
    """Return a function that declares layers with 6 experts."""
    version.experts = [6]
    version.save()
    return version


def nodes(
    *gpus: int, memory_bytes: int = 0, mixture: Mapping[str, Any] | None = None
) -> list[SimulatedAgent]:
    agents = [SimulatedAgent.enrol(f"node-{n}", count, SPEED) for n, count in enumerate(gpus)]
    for agent in agents:
        agent.mixture = mixture
    Gpu.objects.update(memory_bytes=memory_bytes)
    return agents


def live(job: Job) -> Generation:
    return Generation.objects.get(job=job, purpose=Purpose.TRAINING, state=GenerationState.LIVE)


def levels() -> list[int]:
    return list(CurveLevel.objects.order_by("gpus").values_list("gpus", flat=True))


def verdict(job: Job) -> StoredVerdict:
    return StoredVerdict.from_json(Job.objects.get(pk=job.pk).verdict)


def test_levels_are_those_that_experts_and_batch_allow(
    cluster: Cluster, submit: Submit, mixture: FunctionVersion
) -> None:
    agents = nodes(8, 8)
    job = submit(version=mixture, batch=72, seconds=900, iterations=2_000)
    settle(*agents, rounds=30)
    job.refresh_from_db()
    assert levels() == [1, 2, 3, 6, 12]
    assert job.curve is not None
    assert (job.promised, job.curve.plan_family, live(job).world_size) == (True, "moe", 12)
    assert live(job).runtime_plan["family"] == "moe"
    assert live(job).runtime_plan["synchronisers"][0] == {"kind": "expert_parallel", "choices": {}}


def test_numbers_of_experts_that_the_source_hides_are_reported(
    cluster: Cluster, submit: Submit, mixture: FunctionVersion
) -> None:
    mixture.experts = []
    mixture.save()
    agents = nodes(8, mixture=sizes(dense=1, experts=6, expert_bytes=1))
    submit(version=mixture, batch=72, seconds=900, iterations=2_000)
    settle(*agents, rounds=30)
    assert levels() == [1, 2, 4, 8]
    agents += [SimulatedAgent.enrol(f"later-{n}", 8, SPEED) for n in range(2)]
    settle(*agents, rounds=30)
    assert levels() == [1, 2, 4, 8, 12]


def test_workers_that_cannot_hold_the_model_are_no_level(
    cluster: Cluster, submit: Submit, mixture: FunctionVersion
) -> None:
    agents = nodes(8, memory_bytes=9 * GIB, mixture=sizes(dense=4 * GIB, experts=6, expert_bytes=2 * GIB))
    job = submit(version=mixture, batch=72, seconds=900, iterations=2_000)
    settle(*agents, rounds=30)
    assert levels() == [3, 6], "two workers need 4 + 3 * 2 GiB each"
    assert live(job).world_size == 6


@pytest.mark.parametrize(
    ("reported", "memory", "needed", "then"),
    [
        (
            sizes(dense=4 * GIB, experts=6, expert_bytes=8 * GIB),
            "device memory",
            "20 GiB and has 15 GiB",
            "with 6 workers each would need 12 GiB",
        ),
        (
            sizes(dense=16 * GIB, experts=6, expert_bytes=GIB),
            "device memory",
            "18 GiB and has 15 GiB",
            "on any number of workers it needs 17 GiB for each",
        ),
        (
            sizes(dense=GIB, experts=6, expert_bytes=GIB, parameters=40 * GIB),
            "host memory",
            "40 GiB and has 30 GiB",
            "on any number of workers it needs 40 GiB for each",
        ),
    ],
)
def test_a_model_that_fits_nowhere_is_declined_with_what_binds(
    cluster: Cluster,
    submit: Submit,
    mixture: FunctionVersion,
    reported: Mapping[str, Any],
    memory: str,
    needed: str,
    then: str,
) -> None:
    agents = nodes(4, memory_bytes=15 * GIB, mixture=reported)
    Server.objects.update(worker_memory_bytes=30 * GIB)
    job = submit(version=mixture, batch=72, seconds=900)
    settle(*agents, rounds=30)
    job.refresh_from_db()
    assert (job.state, verdict(job).reason_code) == (JobState.DECLINED, "model_does_not_fit")
    assert verdict(job).reason == (
        f"The model does not fit: {memory} binds. With 3 workers, the most here, each needs at least "
        f"{needed}; {then}."
    )
    assert not CurveLevel.objects.exists()

    measured = Generation.objects.count()
    again = submit(version=mixture, batch=72, seconds=900)
    settle(*agents)
    assert verdict(again).reason == verdict(job).reason
    assert Generation.objects.count() == measured, "the sizes are known, so nothing is measured again"
    what_if = job_what_if(project=job.project, request=request_of(job))
    assert (what_if.decision, what_if.reason) == ("declined", verdict(job).reason)


def test_what_if_uses_levels_of_three_six_and_twelve(
    cluster: Cluster, submit: Submit, mixture: FunctionVersion
) -> None:
    nodes(8, 8)
    job = submit(version=mixture, batch=36, seconds=900, iterations=1_000)
    curve = job.curve
    assert curve is not None
    for gpus in (3, 6, 12):
        CurveLevel.objects.create(
            curve=curve, gpus=gpus, iterations_per_second=SPEED[gpus], pause_seconds=1.0
        )
    ScalingCurve.objects.update(state="ready", complete=True)
    request = request_of(job)
    job.delete()
    gpus_by_seconds = {
        seconds: [
            piece["gpus"]
            for piece in job_what_if(
                project=mixture.function.project,
                request=_within(request, seconds),
            ).minimum_satisfactory_share
        ]
        for seconds in (100, 60, 35)
    }
    assert gpus_by_seconds == {100: [4], 60: [8], 35: [16]}
    assert job_what_if(project=mixture.function.project, request=_within(request, 20)).declined


def _within(request: Any, seconds: float) -> Any:
    return replace(request, deadline_at=timezone.now() + timedelta(seconds=seconds))


def test_a_mixture_keeps_its_promise_through_rescaling_and_a_loss(
    cluster: Cluster, submit: Submit, mixture: FunctionVersion
) -> None:
    agents = nodes(4, 4)
    dense = FunctionVersionFactory.create(function__project=mixture.function.project)
    job = submit(version=mixture, batch=72, seconds=3_600, iterations=20_000)
    settle(*agents, rounds=30)
    job.refresh_from_db()
    assert (job.promised, live(job).world_size) == (True, 6)

    rival = submit(version=dense, seconds=150, iterations=3_000, measured=True)
    settle(*agents, rounds=30)
    assert Job.objects.get(pk=rival.pk).promised
    assert live(job).world_size in (1, 2, 3)
    for agent in agents:
        if agent.rank_zero(rival.pk) is not None:
            agent.complete(rival.pk)
    for _ in range(6):
        let_pass(20)
        settle(*agents, rounds=5)
    assert live(job).world_size == 6, "the job grows again"

    lost = agents.pop()
    for _ in range(20):
        let_pass(4)
        expire_leases()
        settle(*agents, rounds=2)
        reconcile()
    job.refresh_from_db()
    assert lost.agent.server.name == "node-1"
    assert (job.state, live(job).world_size) == (JobState.RUNNING, 3)

    families = set(Generation.objects.filter(job=job).values_list("runtime_plan__family", flat=True))
    assert families == {"moe"}
    agents[0].complete(job.pk)
    settle(*agents)
    job.refresh_from_db()
    assert (job.state, job.promise_outcome) == (JobState.COMPLETED, PromiseOutcome.MET)
