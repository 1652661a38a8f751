"""Simulations of the live cluster: its contents, and agreement with live verdicts."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from cluster.models import Cluster, Server
from projects.errors import Conflict, InvalidRequest, Unavailable
from projects.models import User
from scheduling.choices import JobState
from scheduling.models import CurveLevel, Job
from scheduling.services.requests.jobs import job_pause
from simulation.engine.asked.settings import PoolSize, SimulationSettings
from simulation.engine.beginning import begin_under_way
from simulation.engine.run import Simulation
from simulation.live.capture import capture
from simulation.live.state import LiveState, pack, unpack, workload_of
from simulation.live.under_way import under_way
from simulation.models import SimulationStudy
from simulation.outcome import JobEnd
from simulation.reports.parquet import read_parquet
from simulation.services.asking import StudyRequest
from simulation.services.executing import execute_run, workload_for
from simulation.services.studies import study_start
from tests.control_plane.conftest import (  # noqa: F401 - fixtures
    SPEED,
    clock,
    cluster,
    curves_known,
    submit,
    version,
)
from tests.control_plane.simulated_agent import KIND, SimulatedAgent, settle
from tests.simulation.product.conftest import runs_of

pytestmark = pytest.mark.django_db(transaction=True)
Submit = Callable[..., Job]
#: Eight GPUs do 60 iterations a second: one such job meets this deadline, two do not.
ITERATIONS, SECONDS = 60 * 500, 600.0


@pytest.fixture
def nodes(cluster: Cluster) -> list[SimulatedAgent]:  # noqa: F811 - the fixture
    return [SimulatedAgent.enrol(name, 4, SPEED) for name in ("node-1", "node-2")]


def state_now(**options: Any) -> LiveState:
    return capture(Cluster.objects.get(), timezone.now(), **options)


def outcome_of(study: SimulationStudy, store: Any, number: int = 0) -> dict[str, JobEnd]:
    """Return how each job ended in a run of the study."""
    run = runs_of(study)[number]
    assert execute_run(run.pk), run.error
    jobs = read_parquet(store / runs_of(study)[number].results_key).jobs
    return dict(zip(jobs.job_id, jobs.end, strict=True))


def test_live_state_holds_unfinished_jobs_with_remaining_work(
    nodes: list[SimulatedAgent],
    submit: Submit,  # noqa: F811 - the fixture
) -> None:
    Cluster.objects.update(promise_margin=0.2)
    hard = submit(seconds=600, iterations=1000)
    free = submit("best_effort", iterations=4000)
    soft = submit("soft", seconds=36_000)
    settle(*nodes)
    # The job has trained for a minute: progress beyond its speed would not be believed.
    began = timezone.now() - timedelta(seconds=60)
    hard.assignments.update(held_at=began)
    hard.generations.update(live_at=began)
    Job.objects.filter(pk=hard.pk).update(iterations_done=400)
    state = state_now()
    assert (state.gpu_kind, state.servers, state.gpus_per_server) == (KIND, 2, 4)
    jobs = {job.id: job for job in state.jobs}
    assert set(jobs) == {hard.pk, free.pk, soft.pk}
    assert jobs[hard.pk].promised
    assert jobs[hard.pk].placement
    assert jobs[hard.pk].plan
    assert jobs[hard.pk].remaining_iterations <= 600
    assert 0 < (jobs[hard.pk].deadline_at or 0.0) <= 600
    assert jobs[free.pk].deadline_at is None
    # Levels are as measured, not lowered by the promise margin.
    levels = {gpus: rate for gpus, rate, _ in jobs[free.pk].levels}
    assert levels[1] == SPEED[1]
    assert levels == pytest.approx({gpus: rate for gpus, rate in SPEED.items() if gpus in levels})
    assert unpack(pack(state)) == state


def test_promised_job_precedes_a_declined_one_submitted_earlier(
    nodes: list[SimulatedAgent],
    submit: Submit,  # noqa: F811 - the fixture
) -> None:
    declined = submit(seconds=1, iterations=10**6)
    promised = submit(seconds=600)
    settle(*nodes)
    declined.refresh_from_db()
    assert declined.state == JobState.DECLINED
    Job.objects.filter(pk=declined.pk).update(
        deadline_at=timezone.now() + (timezone.now() - declined.submitted_at)
    )
    Job.objects.filter(pk=declined.pk).update(deadline_at=promised.deadline_at)
    workload = workload_of(state_now(with_declined=True))
    assert workload.job_id == (promised.pk, declined.pk)
    assert workload.submitted_at[0] < 0.0 == workload.submitted_at[1]


def test_simulated_live_cluster_repeats_the_live_verdicts(
    nodes: list[SimulatedAgent],
    submit: Submit,  # noqa: F811 - the fixture
    start: Callable[..., SimulationStudy],
    store: Any,
) -> None:
    first = submit(seconds=SECONDS, iterations=ITERATIONS)
    second = submit(seconds=SECONDS, iterations=ITERATIONS)
    settle(*nodes)
    first.refresh_from_db()
    second.refresh_from_db()
    assert (first.state, second.state) == (JobState.RUNNING, JobState.DECLINED)
    study = start(
        source="live", trace="", policies=("punctual",), servers=(2, 4), gpus_per_server=None,
        limit_jobs=None,
        with_declined=True, slot_seconds=5.0,
    )  # fmt: skip
    assert outcome_of(study, store, 0) == {first.pk: JobEnd.COMPLETED, second.pk: JobEnd.DECLINED}
    assert outcome_of(study, store, 1) == {first.pk: JobEnd.COMPLETED, second.pk: JobEnd.COMPLETED}


def test_running_job_starts_in_place_without_a_pause(
    nodes: list[SimulatedAgent],
    submit: Submit,  # noqa: F811 - the fixture
    start: Callable[..., SimulationStudy],
    store: Any,
) -> None:
    job = submit(seconds=SECONDS, iterations=ITERATIONS)
    settle(*nodes)
    state = state_now()
    assert [bool(running.addresses) for running in under_way(state, 2, 4)] == [True]
    assert [bool(running.addresses) for running in under_way(state, 2, 8)] == [False], (
        "servers of another size"
    )
    # A restart would cost more than the job's slack.
    CurveLevel.objects.update(pause_seconds=300.0)
    study = start(
        source="live", trace="", policies=("punctual", "edf"), servers=(), gpus_per_server=None,
        limit_jobs=None,
        slot_seconds=5.0,
    )  # fmt: skip
    for number in range(2):
        assert outcome_of(study, store, number) == {job.pk: JobEnd.COMPLETED}
        summary = runs_of(study)[number].summary or {}
        assert (summary["deadlines_met"], summary["admitted_late"]) == (1, 0)
        assert summary["rescales"] + summary["migrations"] + summary["preemptions"] == 0


def test_cluster_without_the_servers_of_a_job_breaks_its_promise(
    nodes: list[SimulatedAgent],
    submit: Submit,  # noqa: F811 - the fixture
    start: Callable[..., SimulationStudy],
    store: Any,
) -> None:
    job = submit(seconds=SECONDS, iterations=ITERATIONS)
    settle(*nodes)
    study = start(
        source="live", trace="", policies=("punctual",), servers=(1,), gpus_per_server=None, limit_jobs=None,
        slot_seconds=5.0,
    )  # fmt: skip
    assert outcome_of(study, store) == {job.pk: JobEnd.COMPLETED}
    summary = runs_of(study)[0].summary or {}
    assert summary["admitted_late"] == 1
    assert job.pk in summary["broken"]
    # Unusable servers are not counted, and their jobs are moved.
    SimulatedAgent.enrol("node-3", 8, SPEED)
    Server.objects.filter(name="node-1").update(state="down")
    state = state_now()
    assert any("cannot be used now" in note for note in state.notes)
    assert any("4, 8 GPUs" in note for note in state.notes)
    assert state.servers == 2
    assert state.jobs[0].placement == ()


def test_every_run_starts_from_the_moment_of_the_study(
    nodes: list[SimulatedAgent],
    submit: Submit,  # noqa: F811 - the fixture
    start: Callable[..., SimulationStudy],
) -> None:
    job = submit("best_effort", iterations=5000)
    settle(*nodes)
    study = start(source="live", trace="", limit_jobs=None, gpus_per_server=None, servers=())
    before = workload_for(study).iterations.tolist()
    Job.objects.filter(pk=job.pk).update(iterations_done=4999)
    submit("best_effort")
    assert workload_for(SimulationStudy.objects.get(pk=study.pk)).iterations.tolist() == before
    assert [run.servers for run in runs_of(study)] == [2, 2]


def test_jobs_request_a_fixed_size_for_inelastic_policies(
    nodes: list[SimulatedAgent],
    submit: Submit,  # noqa: F811 - the fixture
    operator: User,
) -> None:
    hard = submit(seconds=SECONDS, iterations=ITERATIONS)
    free, paused = (submit("best_effort", iterations=1000) for _ in range(2))
    settle(*nodes)
    paused.refresh_from_db()
    job_pause(job=paused, actor=operator)
    state = state_now()
    assert any("paused by their owners" in note for note in state.notes), "the notes count the jobs left out"
    workload = workload_of(state)
    requested = dict(zip(workload.job_id, workload.requested_gpus.tolist(), strict=True))
    assert requested == {hard.pk: 8, free.pk: 1}
    assert math.isinf(workload.deadline_at[workload.job_id.index(free.pk)])


def test_live_study_without_cluster_jobs_or_kind_is_refused(
    operator: User,
    cluster: Cluster,  # noqa: F811 - the fixture
) -> None:
    request = StudyRequest(source="live", policies=("edf",))
    with pytest.raises(Unavailable):
        study_start(actor=operator, request=request)
    SimulatedAgent.enrol("node-1", 4, SPEED)
    with pytest.raises(Conflict, match="no unfinished job"):
        study_start(actor=operator, request=request)
    with pytest.raises(InvalidRequest, match="abacus"):
        study_start(actor=operator, request=StudyRequest(source="live", policies=("edf",), gpu_type="abacus"))


@pytest.mark.parametrize("servers", [2, *(pytest.param(few, marks=pytest.mark.slow) for few in (1, 3))])
def test_invariants_hold_after_a_start_from_a_running_cluster(
    nodes: list[SimulatedAgent],
    submit: Submit,  # noqa: F811 - the fixture
    servers: int,
) -> None:
    submit(seconds=900, iterations=8000)
    submit("soft", seconds=400, iterations=9000)
    settle(*nodes)
    for iterations in (3000, 20_000):
        submit("best_effort", iterations=iterations)
    submit(seconds=700, iterations=5000)
    settle(*nodes)
    submit(seconds=500, iterations=4000)
    state = state_now()
    run_settings = SimulationSettings(
        policy="punctual",
        pools=(PoolSize(state.gpu_kind, servers, state.gpus_per_server),),
        slot_seconds=5.0,
        check_invariants=True,
    )
    simulation = Simulation(workload_of(state), run_settings)
    begin_under_way(simulation, under_way(state, servers, state.gpus_per_server))
    outcome = simulation.run()
    assert set(outcome.jobs.end) <= {JobEnd.COMPLETED, JobEnd.DECLINED}
    if servers >= 2:
        assert outcome.broken == {}
