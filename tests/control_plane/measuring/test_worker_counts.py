"""A function that runs on 3, 6 or 12 workers is measured, promised and trained there and holds whole
blocks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cluster.models import Cluster
from projects.errors import InvalidRequest
from scheduling.choices import AssignmentState, GenerationState, JobState, Purpose
from scheduling.models import Assignment, CurveLevel, FunctionVersion, Generation, Job
from tests.control_plane.simulated_agent import SimulatedAgent, settle
from tests.factories import FunctionVersionFactory

pytestmark = pytest.mark.django_db(transaction=True)

Submit = Callable[..., Job]
SPEED = {1: 5.0, 2: 10.0, 3: 14.0, 4: 19.0, 6: 27.0, 8: 34.0, 12: 50.0}


@pytest.fixture
def curves_known() -> bool:
    return False


@pytest.fixture
def of_threes(version: FunctionVersion) -> FunctionVersion:
    version.worker_counts = [3, 6, 12]
    version.save()
    return version


@pytest.mark.parametrize(
    ("servers", "levels", "workers"),
    [
        ((8, 8), [3, 6, 12], 12),
        pytest.param((4, 4), [3, 6], 6, marks=pytest.mark.slow),
        pytest.param((6,), [3], 3, marks=pytest.mark.slow),
    ],
)
def test_job_is_measured_promised_and_trained_on_its_worker_counts(
    cluster: Cluster,
    submit: Submit,
    of_threes: FunctionVersion,
    servers: tuple[int, ...],
    levels: list[int],
    workers: int,
) -> None:
    agents = [SimulatedAgent.enrol(f"node-{n}", gpus, SPEED) for n, gpus in enumerate(servers)]
    job = submit(version=of_threes, batch=36, seconds=900, iterations=2_000)
    settle(*agents, rounds=30)
    job.refresh_from_db()
    assert list(CurveLevel.objects.values_list("gpus", flat=True)) == levels
    assert job.curve is not None
    assert (job.state, job.promised) == (JobState.RUNNING, True)
    live = Generation.objects.get(job=job, purpose=Purpose.TRAINING, state=GenerationState.LIVE)
    assert live.world_size == workers
    ranks = [
        key[2] for agent in agents for key, worker in agent.workers.items() if worker.phase == "training"
    ]
    assert sorted(ranks) == list(range(workers))
    gpus_held = Assignment.objects.filter(job=job, state=AssignmentState.HELD).count()
    assert gpus_held == {3: 4, 6: 8, 12: 16}[workers], "the job holds its whole block"


def test_it_shares_the_cluster_with_jobs_on_powers_of_two(
    cluster: Cluster, submit: Submit, of_threes: FunctionVersion
) -> None:
    powers = FunctionVersionFactory.create(function=of_threes.function, number=2)
    agents = [SimulatedAgent.enrol(f"node-{n}", 4, SPEED) for n in range(2)]
    first = submit(version=of_threes, batch=36, seconds=900, iterations=2_000)
    settle(*agents, rounds=30)
    others = [submit("best_effort", iterations=10**6, version=powers) for _ in range(2)]
    settle(*agents, rounds=30)
    owners: dict[tuple[int, int], str] = {}
    for number, agent in enumerate(agents):
        for (job, _, _), worker in agent.workers.items():
            assert owners.setdefault((number, worker.gpu_index), job) == job
    first.refresh_from_db()
    assert (first.promised, first.at_risk, len(others)) == (True, False, 2)


def test_a_batch_that_none_of_them_divides_is_refused(
    cluster: Cluster, submit: Submit, of_threes: FunctionVersion
) -> None:
    SimulatedAgent.enrol("node-1", 4, SPEED)
    with pytest.raises(InvalidRequest) as refused:
        submit(version=of_threes, seconds=60)
    (problem,) = refused.value.errors["hyperparameters.global_batch_size"]
    assert "3, 6, 12 workers" in problem
    assert not Job.objects.exists()
