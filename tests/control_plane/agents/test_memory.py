"""A function that exceeds a worker's memory: such levels are left out, and a training job fails."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cluster.models import Cluster
from scheduling.choices import CurveState, JobState
from scheduling.models import CurveLevel, Job
from tests.control_plane.conftest import SPEED
from tests.control_plane.simulated_agent import SimulatedAgent, SimulatedWorker, settle

pytestmark = pytest.mark.django_db(transaction=True)

MESSAGE = "it used more than 512 MiB of memory, which is what a worker here may use"


@pytest.fixture
def curves_known() -> bool:
    return False


class SmallServer(SimulatedAgent):
    """Kills the worker that is measured on fewer GPUs than `fits`."""

    fits = 4

    def _profile(self, worker: SimulatedWorker) -> None:
        levels = worker.entry["profile"]["levels"]
        if worker.phase == "exited" or levels[0] >= self.fits:
            if worker.phase != "exited":
                super()._profile(worker)
            return
        worker.phase = "exited"
        if worker.rank == 0:
            self.event(worker, "failed", reason="memory_exceeded", message=MESSAGE, traceback="")


class SmallestServer(SmallServer):
    """Holds the function on none of its levels."""

    fits = 8


def test_levels_that_do_not_fit_are_left_out(cluster: Cluster, submit: Callable[..., Job]) -> None:
    node = SmallServer.enrol("node-1", 4, SPEED)
    job = submit(seconds=600)
    settle(node, rounds=30)
    job.refresh_from_db()
    assert list(CurveLevel.objects.values_list("gpus", flat=True)) == [4]
    assert (job.state, job.promised) == (JobState.RUNNING, True)


def test_a_function_that_fits_nowhere_fails_its_job_saying_so(
    cluster: Cluster, submit: Callable[..., Job]
) -> None:
    node = SmallestServer.enrol("node-1", 4, SPEED)
    job = submit(seconds=600)
    settle(node, rounds=30)
    job.refresh_from_db()
    assert job.state == JobState.FAILED
    assert (job.failure or {})["reason"] == "memory_exceeded"
    assert "more than 512 MiB of memory" in (job.failure or {})["message"]
    assert job.curve is not None
    assert job.curve.state == CurveState.FAILED


@pytest.mark.parametrize(
    "reason", ["memory_exceeded", pytest.param("processes_exceeded", marks=pytest.mark.slow)]
)
def test_a_job_that_takes_too_much_while_it_trains_fails_at_once(
    cluster: Cluster, submit: Callable[..., Job], reason: str
) -> None:
    node = SimulatedAgent.enrol("node-1", 4, SPEED)
    neighbour = submit(seconds=3000)
    settle(node)
    job = submit("best_effort", iterations=100_000)
    settle(node)
    worker = node.rank_zero(neighbour.pk)
    assert worker is not None
    node.event(worker, "failed", reason=reason, message=MESSAGE, traceback="")
    node.report()
    settle(node)
    neighbour.refresh_from_db()
    job.refresh_from_db()
    assert (neighbour.state, neighbour.failure) == (
        JobState.FAILED,
        {"reason": reason, "message": MESSAGE, "traceback": ""},
    )
    assert job.state == JobState.RUNNING
