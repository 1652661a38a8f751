"""An agent at work: enrols, starts workers, reports them, stores their results, stops them."""

from __future__ import annotations

from tests.agent.conftest import RunningAgent, wait_until
from tests.agent.fake_control_plane import FakeControlPlane, generation


def test_a_job_is_trained_and_its_result_stored(agent: RunningAgent, plane: FakeControlPlane) -> None:
    agent.start()
    plane.want(generation(hyperparameters={"final_after": 20}))
    wait_until(lambda: plane.events_of("completed"), "the job is completed")
    event = plane.events_of("completed")[0]
    assert event["iteration"] == 20
    assert [artifact["name"] for artifact in event["artifacts"]] == ["weights.pt"]
    assert (agent.store / "jobs/job/artifacts/1/weights.pt").read_bytes() == b"weights"
    wait_until(lambda: plane.phase() == "exited", "the worker has ended")
    assert plane.worker()["exit"]["code"] == 0
    plane.want()
    wait_until(lambda: plane.workers == [], "nobody asks about the worker any more")
    wait_until(lambda: not list(agent.data.glob("workers/*")), "its folder is deleted")
    assert "bundle ['function.py']" in plane.log_of()
