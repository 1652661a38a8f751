"""Loans under each policy of a live cluster: which jobs use borrowed servers, and that all return them (Lyra
section 3.7)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import pytest
from django.db.models import F

from cluster.choices import LendingState
from cluster.models import Cluster
from lending.choices import ReclaimState
from lending.models import InferenceCluster
from lending.services.orchestrator import orchestrate
from scheduling.choices import AssignmentState, GenerationState, JobState, Purpose
from scheduling.models import Assignment, Decision, Generation, Job
from scheduling.policies import POLICIES
from simulation.replay import differences, replay
from tests.control_plane.conftest import SPEED
from tests.control_plane.simulated_agent import KIND, SimulatedAgent, settle
from tests.lending.control_plane.orders import ask_back, lend, servers_of, states

pytestmark = pytest.mark.django_db(transaction=True)

Submit = Callable[..., Job]

LENT_KIND = "emulated-inference"
#: A borrowed GPU is slower.
LENT_SPEED = {gpus: speed / 3 for gpus, speed in SPEED.items()}
#: Uses borrowed servers.
BORROWING = "lyra"


@pytest.fixture
def agents(inference: InferenceCluster, lent_kind: str) -> tuple[SimulatedAgent, ...]:
    """One owned server, and two inference servers whose GPUs are of ``lent_kind``."""
    speed = SPEED if lent_kind == KIND else LENT_SPEED
    return (
        SimulatedAgent.enrol("node-1", 4, SPEED),
        SimulatedAgent.enrol("serving-1", 4, speed, inference, lent_kind),
        SimulatedAgent.enrol("serving-2", 4, speed, inference, lent_kind),
    )


def kinds_of_generations() -> dict[Generation, set[str]]:
    """Kinds of GPU of every unretired generation that trains."""
    kinds: dict[Generation, set[str]] = defaultdict(set)
    held = Assignment.objects.filter(generation__purpose=Purpose.TRAINING).exclude(
        state=AssignmentState.RELEASED
    )
    for one in held.exclude(generation__state=GenerationState.RETIRED).select_related(
        "generation__curve", "gpu"
    ):
        kinds[one.generation].add(one.gpu.kind)
    return kinds


def every_decision_replays() -> None:
    rows = list(Decision.objects.filter(snapshot__isnull=False))
    assert rows
    for row in rows:
        again = replay(bytes(row.snapshot or b""), policy=row.policy, kind=row.kind)
        assert differences(row.summary, again) == []


@pytest.mark.parametrize(
    ("policy", "lent_kind"),
    [
        pytest.param(policy, kind, marks=[] if kind == LENT_KIND else pytest.mark.slow)
        for kind in (LENT_KIND, KIND)
        for policy in (BORROWING, "elasticflow")
    ],
)
def test_a_loan_and_its_return_under(
    policy: str,
    cluster: Cluster,
    inference: InferenceCluster,
    agents: tuple[SimulatedAgent, ...],
    submit: Submit,
) -> None:
    Cluster.objects.update(policy=policy)
    jobs = [submit("best_effort", iterations=1_000_000, name=f"job {number}") for number in range(5)]
    jobs += [submit("soft", seconds=3_600.0, iterations=1_000), submit(seconds=7_200.0, iterations=1_000)]
    settle(*agents)
    assert set().union(*(servers_of(job) for job in jobs)) == {"node-1"}

    lend(inference, "serving-1", "serving-2")
    settle(*agents, rounds=30)
    generations = kinds_of_generations()
    for generation, kinds in generations.items():
        assert len(kinds) == 1, "no job runs on two kinds of GPU at once"
        assert generation.curve is not None
        assert {generation.curve.gpu_kind} == kinds
    used = set().union(*(servers_of(job) for job in jobs)) - {"node-1"}
    assert bool(used) == (policy == BORROWING)

    order = ask_back(inference, 2)
    settle(*agents, rounds=30)
    orchestrate()
    order.refresh_from_db()
    assert order.state == ReclaimState.RETURNED
    assert {states()["serving-1"], states()["serving-2"]} == {LendingState.INFERENCE}
    assert set().union(*(servers_of(job) for job in jobs)) == {"node-1"}
    for job in jobs:
        job.refresh_from_db()
        assert job.state in (JobState.RUNNING, JobState.SUSPENDED, JobState.ADMITTED)
        assert (job.failures, job.late, job.at_risk) == (0, False, False)
        assert job.state != JobState.SUSPENDED or job.checkpoint is not None
    assert all(job.promised == POLICIES[policy].promises for job in jobs if job.service_class == "slo")
    every_decision_replays()


def test_a_job_ends_on_a_borrowed_server_as_at_home(
    cluster: Cluster, inference: InferenceCluster, submit: Submit
) -> None:
    Cluster.objects.update(policy="lyra")
    home = SimulatedAgent.enrol("node-1", 1, SPEED)
    lent = SimulatedAgent.enrol("serving-1", 4, LENT_SPEED, inference, LENT_KIND)
    jobs = [submit("best_effort", iterations=1_000_000) for _ in range(2)]
    settle(home, lent)
    lend(inference, "serving-1")
    settle(home, lent, rounds=30)
    away = next(job for job in jobs if servers_of(job) == {"serving-1"})
    lent.complete(away.pk)
    lent.report()
    settle(home, lent)
    away.refresh_from_db()
    assert (away.state, servers_of(away)) == (JobState.COMPLETED, set())


@pytest.mark.parametrize(
    ("policy", "lent_kind"),
    [
        ("punctual", LENT_KIND),
        *(
            pytest.param(policy, kind, marks=pytest.mark.slow)
            for policy, kind in (
                ("elasticflow", LENT_KIND),
                ("punctual", KIND),
                ("elasticflow", KIND),
            )
        ),
    ],
)
def test_jobs_on_borrowed_servers_survive_a_change_of_policy(
    policy: str,
    cluster: Cluster,
    inference: InferenceCluster,
    agents: tuple[SimulatedAgent, ...],
    submit: Submit,
) -> None:
    Cluster.objects.update(policy="lyra")
    jobs = [submit("best_effort", iterations=1_000_000) for _ in range(5)]
    settle(*agents)
    lend(inference, "serving-1", "serving-2")
    settle(*agents, rounds=30)
    assert set().union(*(servers_of(job) for job in jobs)) > {"node-1"}

    Cluster.objects.update(policy=policy, planning_version=F("planning_version") + 1)
    settle(*agents, rounds=30)
    order = ask_back(inference, 2)
    settle(*agents, rounds=30)
    orchestrate()
    order.refresh_from_db()
    assert order.state == ReclaimState.RETURNED
    for job in jobs:
        job.refresh_from_db()
        assert job.state in (JobState.RUNNING, JobState.SUSPENDED, JobState.ADMITTED)
        assert (job.failures, servers_of(job) <= {"node-1"}) == (0, True)
    assert any(job.state == JobState.RUNNING for job in jobs)
    every_decision_replays()
