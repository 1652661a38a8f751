"""Functions with experts' states in tiers: levels and verdicts follow from the binding tier, and disk is
promised only once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cluster.models import Cluster, Server
from moe.planning.memory import WorkerMemory
from scheduling.choices import GenerationState, JobState, Purpose
from scheduling.models import CurveLevel, FunctionVersion, Generation, Job, ScalingCurve
from scheduling.services.memory.disk_shares import levels_with_room, smallest_disk
from scheduling.services.memory.mixture_models import model_sizes
from scheduling.services.memory.tier_options import modes
from scheduling.services.requests.jobs import request_of
from scheduling.services.requests.what_if import job_what_if
from tests.control_plane.measuring.test_expert_levels import GIB, SPEED, levels, live, nodes, sizes, verdict
from tests.control_plane.simulated_agent import KIND, settle

pytestmark = pytest.mark.django_db(transaction=True)

Submit = Callable[..., Job]
#: No device of 15 GiB holds the 24 GiB of an expert's states: 18 GiB in a file, and gradients.
TIERED = sizes(dense=GIB, experts=6, expert_bytes=24 * GIB, is_tiered=True)


@pytest.fixture
def curves_known() -> bool:
    return False


@pytest.fixture
def mixture(version: FunctionVersion) -> FunctionVersion:
    version.experts = [6]
    version.save()
    return version


def disk(size: int, host: int = 1000 * GIB) -> None:
    Server.objects.update(worker_disk_bytes=size, worker_memory_bytes=host)


def test_a_model_in_tiers_trains_where_it_did_not_fit(
    cluster: Cluster, submit: Submit, mixture: FunctionVersion
) -> None:
    agents = nodes(4, memory_bytes=15 * GIB, mixture=TIERED)
    disk(54 * GIB)
    job = submit(version=mixture, batch=72, seconds=900, iterations=2_000)
    settle(*agents, rounds=30)
    job.refresh_from_db()
    assert levels() == [2, 3], "one worker has 6 * 18 GiB of states in files, two have 54 GiB each"
    assert (job.state, job.promised, live(job).world_size) == (JobState.RUNNING, True, 3)
    tiers = verdict(job).tiers
    assert tiers is not None
    assert tiers["with_tiers"] == {
        "gpus": 2,
        "binding": "disk",
        "options": [
            {"gpus": gpus, "step_seconds": 1 / SPEED[workers], "is_upper_bound": False}
            for gpus, workers in ((2, 2), (4, 3))
        ],
    }
    assert tiers["without_tiers"] == {"gpus": None, "binding": "device memory", "options": []}
    what_if = job_what_if(project=job.project, request=request_of(job))
    assert what_if.tiers == tiers


@pytest.mark.parametrize(
    ("disk_bytes", "host_bytes", "reason"),
    [
        (
            35 * GIB,
            1000 * GIB,
            "disk binds. With 3 workers, the most here, each needs at least 36 GiB and has 35",
        ),
        (99 * GIB, 47 * GIB, "host memory binds. With 3 workers, the most here, each needs at least 48 GiB"),
    ],
)
def test_a_decline_names_the_tier_that_binds(
    cluster: Cluster,
    submit: Submit,
    mixture: FunctionVersion,
    disk_bytes: int,
    host_bytes: int,
    reason: str,
) -> None:
    agents = nodes(4, memory_bytes=15 * GIB, mixture=TIERED)
    disk(disk_bytes, host_bytes)
    job = submit(version=mixture, batch=72, seconds=900)
    settle(*agents, rounds=30)
    job.refresh_from_db()
    assert (job.state, verdict(job).reason_code) == (JobState.DECLINED, "model_does_not_fit")
    assert reason in verdict(job).reason
    tiers = verdict(job).tiers
    assert tiers is not None
    assert reason.startswith(tiers["with_tiers"]["binding"])


def test_levels_are_shown_with_and_without_tiers() -> None:
    mixture = sizes(dense=GIB, experts=6, expert_bytes=6 * GIB)
    levels = [CurveLevel(gpus=gpus, iterations_per_second=rate) for gpus, rate in ((3, 4.0), (6, 2.0))]
    share = WorkerMemory(15 * GIB, 1000 * GIB, 30 * GIB)
    untiered = modes(model_sizes(mixture), share, levels, 12)
    assert untiered["without_tiers"] == {
        "gpus": 4,
        "binding": "device memory",
        "options": [{"gpus": 4, "step_seconds": 0.25, "is_upper_bound": False}],
    }
    assert untiered["with_tiers"] == {"gpus": 1, "binding": "", "options": []}
    tiered = modes(model_sizes(mixture).in_tiers(), share, levels, 12)
    assert tiered["without_tiers"]["options"] == [{"gpus": 4, "step_seconds": 0.25, "is_upper_bound": True}]


def test_measured_levels_without_room_on_disk_are_none(
    cluster: Cluster, submit: Submit, mixture: FunctionVersion
) -> None:
    agents = nodes(4, memory_bytes=15 * GIB, mixture=TIERED)
    disk(108 * GIB)
    job = submit(version=mixture, batch=72, seconds=900, iterations=2_000)
    settle(*agents, rounds=30)
    assert levels() == [1, 2, 3]
    curve = ScalingCurve.objects.get()

    def room() -> list[int]:
        return [level.gpus for level in levels_with_room(curve.levels.all(), curve, cluster)]

    assert room() == [1, 2, 3]
    disk(40 * GIB)
    assert smallest_disk(cluster, KIND) == 40 * GIB
    assert room() == [3]
    disk(20 * GIB)
    assert room() == [3], "a level on which a job trains has its room"
    Generation.objects.filter(job=job, purpose=Purpose.TRAINING).update(state=GenerationState.RETIRED)
    assert room() == []
    what_if = job_what_if(project=job.project, request=request_of(job))
    assert what_if.declined
