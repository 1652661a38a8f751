"""A measurement ends within one bound, and promises are made on that bound."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from cluster.models import Cluster, Gpu
from scheduling.choices import CurveState, GenerationState, JobState, Purpose
from scheduling.models import CurveLevel, Generation, Job, ScalingCurve
from scheduling.services.agents.leases import reconcile
from scheduling.services.generations.blocking import release_bounds
from scheduling.services.planning import planning
from scheduling.services.planning.planning import run_planner
from scheduling.services.snapshots.snapshots import pool_snapshot
from tests.control_plane.conftest import SPEED
from tests.control_plane.simulated_agent import KIND, SimulatedAgent, SimulatedWorker, settle
from tests.factories import FunctionVersionFactory

pytestmark = pytest.mark.django_db(transaction=True)

Submit = Callable[..., Job]


@pytest.fixture
def curves_known() -> bool:
    return False


class HangingAgent(SimulatedAgent):
    """Its workers hang while they import the function, so that nothing is ever measured."""

    def _profile(self, worker: SimulatedWorker) -> None:
        worker.phase = "preparing"

    def kill_measurement(self) -> None:
        """End the measurement as the agent does at its time limit."""
        for worker in self.workers.values():
            if worker.entry["purpose"] == "profiling" and worker.phase != "exited":
                worker.phase = "exited"
                self.event(
                    worker, "failed", rank=worker.rank, reason="measuring_timeout",
                    message="measuring took longer than 60 s", traceback="",
                )  # fmt: skip


@pytest.fixture
def node(cluster: Cluster) -> HangingAgent:
    agent = HangingAgent.enrol("node-1", 4, SPEED)
    assert isinstance(agent, HangingAgent)
    return agent


def measurements() -> list[Generation]:
    return list(Generation.objects.filter(purpose=Purpose.PROFILING).order_by("pk"))


def hang(node: HangingAgent) -> None:
    """Start a measurement and kill its worker at the time limit, without a report."""
    run_planner("test")
    node.obey()
    node.report()
    node.kill_measurement()


def report_end(node: HangingAgent) -> None:
    node.report()
    node.obey()
    node.report()


def hang_twice(node: HangingAgent) -> None:
    """Start two measurements and end both at their time limits."""
    for _ in range(2):
        hang(node)
        report_end(node)


def test_measured_gpus_are_blocked_until_the_measurement_is_killed(
    cluster: Cluster, node: HangingAgent, submit: Submit
) -> None:
    submit(seconds=6000)
    run_planner("test")
    node.obey()
    node.report()
    (measuring,) = measurements()
    assert measuring.held_at is not None
    assert measuring.step_expires_at is not None
    (block,) = pool_snapshot(Cluster.objects.get(), KIND, timezone.now()).snapshot.blocked
    bounds = release_bounds(cluster)
    killed_by = measuring.held_at.timestamp() + bounds.report_seconds + cluster.profile_maximum_seconds
    assert block.until > killed_by
    assert block.until >= measuring.step_expires_at.timestamp(), "even if the agent does not end it"
    # Reports of the workers do not extend the bound.
    for worker in node.workers.values():
        worker.phase = "profiling"
    node.report()
    (later,) = measurements()
    assert later.state == GenerationState.LIVE
    assert later.step_expires_at == measuring.step_expires_at


def test_unended_measurement_is_given_up_at_its_bound(
    cluster: Cluster, node: HangingAgent, submit: Submit
) -> None:
    submit(seconds=6000)
    run_planner("test")
    node.obey()
    node.report()
    Generation.objects.update(step_expires_at=timezone.now() - timedelta(seconds=1))
    reconcile()
    (measuring,) = measurements()
    assert measuring.state == GenerationState.RETIRED


def test_a_function_that_hangs_twice_fails_and_its_gpus_are_free(node: HangingAgent, submit: Submit) -> None:
    job = submit(seconds=6000)
    twin = submit(seconds=6000)
    hang_twice(node)
    settle(node)
    for item in (job, twin):
        item.refresh_from_db()
        assert item.state == JobState.FAILED
        assert item.failure is not None
        assert "took longer than 1 min" in item.failure["message"]
    assert len(measurements()) == 2, "one retry, and none for the function's other jobs"
    assert pool_snapshot(Cluster.objects.get(), KIND, timezone.now()).snapshot.blocked == ()


def test_function_that_hung_twice_is_not_measured_after_a_late_report(
    node: HangingAgent, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report arrives after the pass has settled time limits and before it selects a measurement."""
    submit(seconds=6000)
    hang(node)
    report_end(node)
    hang(node)
    settle_time = planning._settle_time

    def settled_before_the_report(cluster: Cluster, epoch: int, now: datetime) -> int:
        changed = settle_time(cluster, epoch, now)
        report_end(node)
        return changed

    monkeypatch.setattr(planning, "_settle_time", settled_before_the_report)
    run_planner("test")
    assert [measurement.retired_because for measurement in measurements()] == ["measuring_timeout"] * 2


def test_function_with_a_curve_survives_timeouts_on_more_levels(node: HangingAgent, submit: Submit) -> None:
    first = submit(seconds=6000)
    hang_twice(node)
    # As if both measurements had been for further levels of a function with a curve.
    assert first.curve is not None
    CurveLevel.objects.create(
        curve=first.curve, gpus=1, iterations_per_second=10.0, train_seconds=0.1, pause_seconds=0.1
    )
    ScalingCurve.objects.update(state=CurveState.READY, complete=True)
    newcomer = submit(seconds=6000)
    assert newcomer.curve == first.curve
    settle(node)
    newcomer.refresh_from_db()
    assert newcomer.state != JobState.FAILED


def test_levels_measured_before_the_timeout_count(node: HangingAgent, submit: Submit) -> None:
    job = submit(seconds=6000)
    run_planner("test")
    node.obey()
    worker = next(iter(node.workers.values()))
    node.event(
        worker,
        "profile_level",
        rank=0,
        gpus=1,
        iterations_per_second=10.0,
        train_seconds=0.1,
        pause_seconds=0.1,
    )
    node.report()
    node.kill_measurement()
    node.report()
    job.refresh_from_db()
    assert job.curve is not None
    assert job.curve.state == CurveState.READY


def test_no_promise_counts_on_gpus_that_a_measurement_may_hold_longer(
    cluster: Cluster, node: HangingAgent, submit: Submit
) -> None:
    """A measurement may take 60 s, so a promise that needs the GPUs after 64 s would not be safe."""
    measured_version = FunctionVersionFactory.create()
    quick = SimulatedAgent(node.agent, SPEED, sequence=node.sequence, desired_version=node.desired_version)
    first = submit("best_effort", iterations=10, version=measured_version)
    settle(quick)
    quick.complete(first.pk)
    quick.report()
    settle(quick)
    node.sequence, node.desired_version, node.workers = quick.sequence, quick.desired_version, quick.workers
    submit(seconds=6000)
    settle(node, rounds=2)
    assert [measurement.state for measurement in measurements()][-1] != GenerationState.RETIRED
    # 1000 iterations take 29 s on all four GPUs: the tight deadline leaves the measurement about 60 s, less
    # than its bound.
    bounds = release_bounds(cluster)
    tight = submit(seconds=60 + 29.5 + 1, iterations=1000, version=measured_version)
    roomy = submit(seconds=bounds.measurement_seconds + 29.5 + 30, iterations=1000, version=measured_version)
    run_planner("test")
    tight.refresh_from_db()
    roomy.refresh_from_db()
    assert (tight.promised, roomy.promised) == (False, True)


def test_no_job_gets_a_broken_gpu(cluster: Cluster, submit: Submit) -> None:
    agent = SimulatedAgent.enrol("node-2", 4, SPEED)
    Gpu.objects.filter(index=3).update(healthy=False)
    job = submit("best_effort", iterations=100_000)
    settle(agent)
    job.refresh_from_db()
    assert job.state == JobState.RUNNING
    assert set(job.assignments.filter(state="held").values_list("gpu__index", flat=True)) <= {0, 1, 2}
