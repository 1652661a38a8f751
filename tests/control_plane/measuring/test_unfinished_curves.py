"""No job is declined for levels that are missing only because GPUs were not free."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from cluster.models import Agent, Cluster
from scheduling.choices import CurveState, JobState, Purpose
from scheduling.core.question.decision import Decision
from scheduling.core.question.recording import unpack_snapshot
from scheduling.core.question.snapshot import Snapshot
from scheduling.curve_keys import function_key_on
from scheduling.models import CurveLevel, Generation, GradientProfile, Incident, Job, ScalingCurve
from scheduling.policies import Policy
from scheduling.services.agents.leases import fence_server, reconcile
from scheduling.services.gradients.gradient_plans import make_plans
from scheduling.services.planning.planning import newcomers_wait, run_planner
from tests.control_plane.simulated_agent import SimulatedAgent, SimulatedWorker, settle_through_slots
from tests.control_plane.simulated_time import SimulatedTime
from tests.factories import FunctionVersionFactory

pytestmark = pytest.mark.django_db(transaction=True)

Submit = Callable[..., Job]
KNOWN = {1: 10.0, 2: 19.0}


@pytest.fixture
def curves_known() -> bool:
    return False


def curve_of(job: Job) -> ScalingCurve:
    assert job.curve is not None
    return ScalingCurve.objects.get(pk=job.curve.pk)


def levels_of(job: Job) -> set[int]:
    return set(curve_of(job).levels.values_list("gpus", flat=True))


def with_curve(job: Job, levels: dict[int, float]) -> Job:
    """Store a complete curve of the job's function."""
    ScalingCurve.objects.filter(pk=curve_of(job).pk).update(state=CurveState.READY, complete=True)
    for gpus, rate in levels.items():
        CurveLevel.objects.create(curve=curve_of(job), gpus=gpus, iterations_per_second=rate)
    return job


def occupied(submit: Submit, node: SimulatedAgent, clock: SimulatedTime) -> Job:
    """Return a promised job that needs two of the four GPUs until its end and gains nothing from more."""
    version = FunctionVersionFactory.create()
    holder = with_curve(submit(seconds=1040, iterations=19 * 1000, version=version), KNOWN)
    settle_through_slots(node, rounds=4)
    holder.refresh_from_db()
    assert (holder.promised, holder.state) == (True, JobState.RUNNING)
    return holder


def newcomer_beside(
    submit: Submit, node: SimulatedAgent, clock: SimulatedTime, **request_fields: float
) -> Job:
    """Return a newcomer that needs four GPUs; its function was measured on the two free GPUs."""
    job = submit(**request_fields)
    settle_through_slots(node)
    job.refresh_from_db()
    return job


def test_job_that_needs_more_levels_waits_for_gpus_to_measure_them(
    cluster: Cluster, owned: SimulatedAgent, submit: Submit, clock: SimulatedTime
) -> None:
    holder = occupied(submit, owned, clock)
    job = newcomer_beside(submit, owned, clock, seconds=600, iterations=34 * 500)
    assert job.state == JobState.PROFILING
    assert job.verdict is not None
    assert (job.verdict["decision"], job.verdict["reason_code"]) == ("pending", "awaits_levels")
    assert "known on up to 2 GPUs only" in job.verdict["reason"]
    assert "measured on up to 4 GPUs as soon as they are free" in job.verdict["reason"]
    assert levels_of(job) == {1, 2}
    assert not newcomers_wait(Cluster.objects.get()), "passes do not look at it again and again"

    owned.complete(holder.pk)
    owned.report()
    settle_through_slots(owned)
    job.refresh_from_db()
    assert levels_of(job) == {1, 2, 4}
    assert job.promised
    assert job.events.filter(kind="awaits_levels").count() == 1


def test_best_effort_makes_room_for_the_levels_that_a_verdict_needs(
    cluster: Cluster, owned: SimulatedAgent, submit: Submit, clock: SimulatedTime
) -> None:
    holder = occupied(submit, owned, clock)
    job = newcomer_beside(submit, owned, clock, seconds=600, iterations=34 * 500)
    patient = submit("best_effort", iterations=10**6, version=FunctionVersionFactory.create())
    with_curve(patient, {1: 10.0, 2: 19.0, 4: 36.0})
    settle_through_slots(owned, rounds=3)
    assert patient.assignments.filter(state="held").count() == 2
    owned.complete(holder.pk)
    owned.report()
    settle_through_slots(owned)
    job.refresh_from_db()
    assert job.promised


def test_decline_on_timeout_names_the_measured_gpu_counts(
    cluster: Cluster, owned: SimulatedAgent, submit: Submit, clock: SimulatedTime
) -> None:
    occupied(submit, owned, clock)
    job = newcomer_beside(submit, owned, clock, seconds=600, iterations=34 * 500)
    assert job.state == JobState.PROFILING
    clock.turn(290)
    owned.report()
    run_planner("test")
    job.refresh_from_db()
    assert job.state == JobState.PROFILING
    clock.turn(12)
    owned.report()
    settle_through_slots(owned)
    job.refresh_from_db()
    assert job.state == JobState.DECLINED
    assert job.verdict is not None
    assert job.verdict["reason"].endswith(
        "its speed was measured on up to 2 GPUs only, as no more were free for that in time"
    )


def declined_for_missing_levels(submit: Submit, node: SimulatedAgent, clock: SimulatedTime) -> Job:
    """Return a declined newcomer that needed four GPUs, two of which were never free in time."""
    job = newcomer_beside(submit, node, clock, seconds=600, iterations=34 * 500)
    clock.turn(302)
    node.report()
    settle_through_slots(node)
    job.refresh_from_db()
    assert (job.state, levels_of(job)) == (JobState.DECLINED, {1, 2})
    return job


def test_levels_missing_at_a_decline_are_measured_on_idle_gpus(
    cluster: Cluster, owned: SimulatedAgent, submit: Submit, clock: SimulatedTime
) -> None:
    holder = occupied(submit, owned, clock)
    first = declined_for_missing_levels(submit, owned, clock)
    owned.complete(holder.pk)
    owned.report()
    settle_through_slots(owned)
    first.refresh_from_db()
    assert levels_of(first) == {1, 2, 4}
    assert first.state == JobState.DECLINED, "a decline is final"
    measured_since = first.events.get(kind="measured_since")
    assert "now known on up to 4 GPUs" in measured_since.message
    assert not Generation.objects.exclude(state="retired").exclude(purpose=Purpose.TRAINING).exists()

    clock.turn(61)  # nothing is held for its offer any more
    owned.report()
    second = submit(seconds=600, iterations=34 * 500)
    settle_through_slots(owned, rounds=4)
    second.refresh_from_db()
    assert second.promised
    assert not second.generations.filter(purpose=Purpose.PROFILING).exists()


@pytest.mark.slow
def test_measuring_after_a_decline_suspends_no_job(
    cluster: Cluster, owned: SimulatedAgent, submit: Submit, clock: SimulatedTime
) -> None:
    holder = occupied(submit, owned, clock)
    job = declined_for_missing_levels(submit, owned, clock)
    patient = submit("best_effort", iterations=10**6, version=FunctionVersionFactory.create())
    with_curve(patient, {1: 10.0, 2: 19.0, 4: 36.0})
    clock.turn(61)  # nothing is held for its offer any more
    owned.report()
    settle_through_slots(owned)
    owned.complete(holder.pk)
    owned.report()
    settle_through_slots(owned)
    assert patient.assignments.filter(state="held").count() == 4
    assert not patient.events.filter(kind="suspending").exists()
    assert levels_of(job) == {1, 2}


def test_measuring_after_a_decline_stops_after_four_tries_or_a_day(
    cluster: Cluster, owned: SimulatedAgent, submit: Submit, clock: SimulatedTime
) -> None:
    class GivesUp(SimulatedAgent):
        """Fails to start workers for measurements."""

        def _profile(self, worker: SimulatedWorker) -> None:
            if worker.phase != "exited":
                worker.phase = "exited"
                self.event(
                    worker, "failed", rank=worker.rank, reason="platform_error", message="lost", traceback="",
                )  # fmt: skip

    holder = occupied(submit, owned, clock)
    job = declined_for_missing_levels(submit, owned, clock)
    failing = GivesUp(**{field.name: getattr(owned, field.name) for field in fields(owned)})
    failing.complete(holder.pk)
    failing.report()
    settle_through_slots(failing, rounds=40)
    tries = job.generations.filter(purpose=Purpose.PROFILING, created_at__gt=job.finished_at)
    assert tries.count() == 4
    job.refresh_from_db()
    assert job.state == JobState.DECLINED
    assert curve_of(job).state == CurveState.READY, "the measured levels count"
    assert not Generation.objects.exclude(state="retired").exists()

    tries.delete()
    clock.turn(86_500)
    failing.report()
    settle_through_slots(failing)
    assert not tries.exists()


def test_a_server_that_falls_silent_while_it_measures_on_is_freed(
    cluster: Cluster, owned: SimulatedAgent, submit: Submit, clock: SimulatedTime
) -> None:
    holder = occupied(submit, owned, clock)
    job = declined_for_missing_levels(submit, owned, clock)
    owned.complete(holder.pk)
    owned.report()
    for _ in range(3):
        run_planner("test")
        owned.report()
    under_way = Generation.objects.get(job=job, purpose=Purpose.PROFILING, retired_at=None)
    reconcile()
    under_way.refresh_from_db()
    assert under_way.retired_at is None, "the measurement is still needed"
    fence = Cluster.objects.get().fence_seconds
    Agent.objects.update(last_report_at=timezone.now() - timedelta(seconds=fence + 1))
    fence_server(Agent.objects.get(), Cluster.objects.get())
    under_way.refresh_from_db()
    assert under_way.retired_at is not None


@pytest.mark.slow
def test_later_submissions_of_the_function_wait_for_more_levels_too(
    cluster: Cluster, owned: SimulatedAgent, submit: Submit, clock: SimulatedTime
) -> None:
    holder = occupied(submit, owned, clock)
    first = newcomer_beside(submit, owned, clock, seconds=600, iterations=34 * 500)
    clock.turn(301)
    owned.report()
    settle_through_slots(owned)
    first.refresh_from_db()
    assert first.state == JobState.DECLINED
    clock.turn(61)  # nothing is held for its offer any more
    second = newcomer_beside(submit, owned, clock, seconds=600, iterations=34 * 500)
    assert second.state == JobState.SUBMITTED
    owned.complete(holder.pk)
    owned.report()
    settle_through_slots(owned)
    second.refresh_from_db()
    assert second.promised


def test_a_curve_up_to_all_gpus_of_the_cluster_is_complete(
    cluster: Cluster, owned: SimulatedAgent, submit: Submit, clock: SimulatedTime
) -> None:
    job = newcomer_beside(submit, owned, clock, seconds=100, iterations=10**6)
    assert levels_of(job) == {1, 2, 4}
    assert job.state == JobState.DECLINED
    assert job.verdict is not None
    assert "only" not in job.verdict["reason"]


@pytest.mark.slow
def test_measured_levels_count_if_a_further_measurement_fails(
    cluster: Cluster, owned: SimulatedAgent, submit: Submit, clock: SimulatedTime
) -> None:
    holder = occupied(submit, owned, clock)
    job = newcomer_beside(submit, owned, clock, seconds=600, iterations=34 * 500)
    owned.complete(holder.pk)
    owned.report()
    for _ in range(2):
        run_planner("test")
        owned.report()
    under_way = Generation.objects.filter(job=job, purpose=Purpose.PROFILING).latest("number")
    assert under_way.profile is not None
    assert under_way.profile["levels"] == [4], "known levels are not measured again"
    fastest = max(level.iterations_per_second for level in curve_of(job).levels.all())
    assert under_way.profile["known"] == fastest
    owned.workers.clear()
    clock.turn(200)
    owned.report()
    reconcile()
    run_planner("test")
    assert curve_of(job).state != CurveState.UNKNOWN
    assert levels_of(job) == {1, 2}


def test_failed_plan_prevents_a_measurement_but_not_the_pass(
    cluster: Cluster, owned: SimulatedAgent, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(policy: Policy, snapshot: Snapshot) -> Decision:
        if snapshot.blocked:
            raise ValueError("range() arg 3 must not be zero")
        return replan(policy, snapshot)

    replan = Policy.replan
    job = submit(seconds=600, iterations=100)
    with monkeypatch.context() as patch:
        patch.setattr(Policy, "replan", broken)
        run_planner("test")
        assert not Generation.objects.filter(job=job).exists()
        incident = Incident.objects.get(job=job, kind=Incident.Kind.NOT_MEASURED)
        with pytest.raises(CommandError, match="must not be zero"):
            call_command("replay", incident=incident.pk)
    run_planner("test")
    assert Generation.objects.get(job=job).purpose == Purpose.PROFILING
    # The failed question was stored: replaying it shows whether it has an answer now.
    call_command("replay", incident=incident.pk)
    assert unpack_snapshot(bytes(incident.snapshot or b"")).blocked


def newcomer_of_large_gradients(submit: Submit, node: SimulatedAgent) -> Job:
    """Return a newcomer that is too slow without a communication plan; its gradients are measured with its
    curve."""
    job = submit(seconds=600, iterations=50 * 500, lossy="allowed")
    assert job.curve is not None
    tensors = [{"name": f"layer{number}", "elements": 10_000_000, "gap_seconds": 5e-4} for number in range(8)]
    content = {"tensors": tensors, "sparse": [], "codecs": [], "other_seconds": 0.01, "bytes_per_element": 4}
    for gpus in (2, 4):
        GradientProfile.objects.create(
            key=function_key_on(job, job.curve.gpu_kind),
            gpu_kind=job.curve.gpu_kind,
            gpus=gpus,
            content=content,
        )
    settle_through_slots(node)
    job.refresh_from_db()
    return job


def test_job_that_needs_a_plan_is_measured_and_promised_under_it(
    cluster: Cluster, owned: SimulatedAgent, submit: Submit, clock: SimulatedTime
) -> None:
    job = newcomer_of_large_gradients(submit, owned)
    assert (job.state, curve_of(job).plan_family) == (JobState.PROFILING, "dense")
    assert job.verdict is not None
    assert (job.verdict["decision"], job.verdict["reason_code"]) == ("pending", "awaits_plan")
    assert "Plans are being made" in job.verdict["reason"]
    assert not newcomers_wait(Cluster.objects.get()), "passes do not look at it again and again"

    owned.speed = {1: 10.0, 2: 30.0, 4: 70.0}
    assert make_plans(9) == 2
    settle_through_slots(owned, rounds=3)
    job.refresh_from_db()
    assert (curve_of(job).plan_family, levels_of(job)) == ("lossy", {1, 2, 4})
    assert job.promised
    assert job.events.filter(kind="awaits_plan").count() == 2


def test_job_too_slow_under_any_plan_is_declined(
    cluster: Cluster, owned: SimulatedAgent, submit: Submit, clock: SimulatedTime
) -> None:
    job = newcomer_of_large_gradients(submit, owned)
    make_plans(9)
    settle_through_slots(owned, rounds=3)
    job.refresh_from_db()
    assert (job.state, curve_of(job).plan_family) == (JobState.DECLINED, "lossy")


def test_job_without_a_faster_plan_is_declined_once_plans_exist(
    cluster: Cluster, owned: SimulatedAgent, submit: Submit, clock: SimulatedTime
) -> None:
    job = newcomer_of_large_gradients(submit, owned)
    for profile in GradientProfile.objects.all():
        profile.content["tensors"] = [{"name": "small", "elements": 10, "gap_seconds": 1.0}]
        profile.save()
    make_plans(9)
    settle_through_slots(owned)
    job.refresh_from_db()
    assert (job.state, curve_of(job).plan_family) == (JobState.DECLINED, "dense")
