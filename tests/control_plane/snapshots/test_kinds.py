"""Several kinds of GPU are tried in turn, and a refusal is final only on the last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from math import inf

import pytest
from django.utils import timezone

from cluster.models import Cluster
from scheduling.choices import CurveState, JobState, OfferState
from scheduling.core.question.snapshot import ServiceClass
from scheduling.models import Decision, FunctionVersion, Job, Offer, ScalingCurve
from scheduling.services.requests.accepting import job_accept_offer
from scheduling.services.requests.jobs import JobRequest
from scheduling.services.requests.what_if import job_what_if
from simulation.engine.asked.settings import PoolSize
from simulation.engine.run import Simulation
from simulation.replay import differences, replay
from tests.control_plane.simulated_agent import SimulatedAgent, SimulatedWorker, settle_through_slots
from tests.control_plane.simulated_time import SimulatedTime
from tests.simulation.engine.worlds import Job as Request
from tests.simulation.engine.worlds import settings, workload

pytestmark = pytest.mark.django_db(transaction=True)

Submit = Callable[..., Job]
Nodes = tuple[SimulatedAgent, SimulatedAgent]
SLOW = {1: 10.0, 2: 19.0, 4: 34.0}
FAST = {1: 30.0, 2: 57.0}


@pytest.fixture
def curves_known() -> bool:
    return False


@pytest.fixture
def nodes(cluster: Cluster) -> Nodes:
    """Return four GPUs of one kind and two of a faster one."""
    return (
        SimulatedAgent.enrol("many", 4, SLOW, kind="emulated-t4"),
        SimulatedAgent.enrol("few", 2, FAST, kind="emulated-a100"),
    )


def reloaded(job: Job) -> Job:
    return Job.objects.select_related("curve").get(pk=job.pk)


def kind(job: Job) -> str:
    current = reloaded(job)
    assert current.curve is not None
    return current.curve.gpu_kind


def test_job_refused_on_the_most_numerous_kind_is_tried_on_the_next(
    nodes: Nodes, submit: Submit, clock: SimulatedTime
) -> None:
    # At most 34 iterations a second on T4s, 57 on A100s.
    job = submit(seconds=100, iterations=4000)
    assert kind(job) == "emulated-t4"
    settle_through_slots(*nodes)
    current = reloaded(job)
    assert current.promised
    assert kind(job) == "emulated-a100"
    assert set(current.assignments.filter(state="held").values_list("gpu__kind", flat=True)) == {
        "emulated-a100"
    }
    assert list(current.refused_kinds) == ["emulated-t4"]
    for row in Decision.objects.filter(snapshot__isnull=False):
        replayed = replay(bytes(row.snapshot or b""), policy=row.policy, kind=row.kind)
        assert differences(row.summary, replayed) == [], "what the policy said is what is kept"
    moved_event = current.events.get(kind="asked_elsewhere")
    assert "emulated-t4 GPUs cannot take it" in moved_event.message
    assert "asked for on emulated-a100 GPUs now" in moved_event.message


def test_refusal_names_all_kinds_and_offers_the_earliest_deadline(
    nodes: Nodes, submit: Submit, clock: SimulatedTime
) -> None:
    job = submit(seconds=100, iterations=60_000)
    settle_through_slots(*nodes)
    current = reloaded(job)
    assert current.state == JobState.DECLINED
    assert current.verdict is not None
    declining = Decision.objects.filter(summary__verdicts__contains=[{"job": job.pk, "final": True}]).get()
    replayed = replay(bytes(declining.snapshot or b""), policy=declining.policy, kind=declining.kind)
    assert differences(declining.summary, replayed) == [], "its reason there is that of one kind"
    reason = current.verdict["reason"]
    assert reason.startswith("on emulated-t4 GPUs: ")
    assert "; on emulated-a100 GPUs: " in reason
    offer = Offer.objects.get(job=job, state=OfferState.OPEN)
    # 60,000 iterations take 30 minutes on T4s, 18 minutes on A100s.
    assert offer.deadline_at < timezone.now() + timedelta(minutes=25)
    accepted = job_accept_offer(job=current, actor=current.owner)
    assert kind(accepted) == "emulated-a100"
    settle_through_slots(*nodes)
    assert reloaded(accepted).state == JobState.RUNNING


def test_best_effort_goes_where_fewest_jobs_share_a_gpu(
    nodes: Nodes, submit: Submit, clock: SimulatedTime
) -> None:
    first = submit("best_effort", iterations=10**6)
    second = submit("best_effort", iterations=10**6)
    assert (kind(first), kind(second)) == ("emulated-t4", "emulated-a100")
    settle_through_slots(*nodes)
    assert {reloaded(first).state, reloaded(second).state} == {JobState.RUNNING}


#: Service class, seconds to the deadline, iterations; submitted in this order, a moment after each other.
ASKED: Sequence[tuple[str, float | None, int]] = (
    *[("best_effort", None, 10**6)] * 3,
    ("slo", 1000, 5000),
    ("slo", 100, 4000),
    ("slo", 1000, 10**6),
    ("soft", 1000, 10**6),
)


@pytest.mark.slow
def test_jobs_are_spread_over_the_kinds_live_as_in_a_simulation(
    nodes: Nodes, submit: Submit, clock: SimulatedTime
) -> None:
    jobs = []
    for service_class, seconds, iterations in ASKED:
        jobs.append(submit(service_class, seconds=seconds, iterations=iterations))
        settle_through_slots(*nodes)
    decided = [reloaded(job) for job in jobs]
    live = ["" if job.state == JobState.DECLINED else kind(job) for job in decided]
    # Jobs without a deadline are spread over four T4s and two A100s as two to one. Jobs with a deadline are
    # tried on the T4s first, since there are more, then on the A100s: 4,000 iterations in 100 s do not fit
    # the T4s, and a million iterations fit neither.
    few, many = "emulated-a100", "emulated-t4"
    assert live == [many, few, many, many, few, "", many]

    curves = {many: SLOW, few: FAST}
    requests = [
        Request(
            number, iterations, number + seconds if seconds else inf, by_kind=curves,
            service_class=ServiceClass(service_class),
        )
        for number, (service_class, seconds, iterations) in enumerate(ASKED)
    ]  # fmt: skip
    # The order of the pools does not matter.
    pools = (PoolSize(few, 1, 2), PoolSize(many, 1, 4))
    simulated = Simulation(workload(requests), replace(settings(policy="punctual"), pools=pools)).run()
    assert list(simulated.jobs.pool) == live


class SmallMemory(SimulatedAgent):
    """Every measured level exceeds the memory of this agent's devices."""

    def _profile(self, worker: SimulatedWorker) -> None:
        if worker.phase != "exited":
            worker.phase = "exited"
            self.event(
                worker, "failed", rank=worker.rank, reason="memory_exceeded",
                message="a worker took more memory than there is", traceback="",
            )  # fmt: skip


def test_function_that_does_not_fit_on_one_kind_is_tried_on_the_next(
    cluster: Cluster, submit: Submit, clock: SimulatedTime
) -> None:
    nodes = (
        SmallMemory.enrol("many", 4, SLOW, kind="emulated-t4"),
        SimulatedAgent.enrol("few", 2, FAST, kind="emulated-a100"),
    )
    job = submit(seconds=300, iterations=1000)
    settle_through_slots(*nodes, rounds=14)
    current = reloaded(job)
    assert current.promised
    assert kind(job) == "emulated-a100"
    assert "could not be measured" in current.refused_kinds["emulated-t4"]["reason"]


def test_what_if_tries_all_kinds_and_offers_the_earliest_deadline(
    nodes: Nodes, submit: Submit, clock: SimulatedTime, version: FunctionVersion
) -> None:
    job = submit(seconds=100, iterations=4000)

    def ask_what_if(iterations: int) -> dict[str, object]:
        return job_what_if(
            project=job.project,
            request=JobRequest(
                function_version=version,
                name="asked",
                hyperparameters={"global_batch_size": 64},
                max_iterations=iterations,
                service_class="slo",
                deadline_at=timezone.now() + timedelta(seconds=100),
            ),
        ).as_json()

    assert ask_what_if(4000)["needs_profiling"] is True
    settle_through_slots(*nodes)
    nodes[1].complete(job.pk)
    nodes[1].report()
    settle_through_slots(*nodes, rounds=3)
    assert set(ScalingCurve.objects.values_list("gpu_kind", "state")) == {
        ("emulated-t4", CurveState.READY), ("emulated-a100", CurveState.READY)
    }  # fmt: skip
    assert ask_what_if(1000)["decision"] == "admitted"
    assert ask_what_if(4000)["decision"] == "admitted", "by the second kind"
    refused = ask_what_if(60_000)
    assert refused["decision"] == "declined"
    assert "on emulated-t4 GPUs: " in str(refused["reason"])
    offer = refused["offer"]
    assert isinstance(offer, dict)
    assert offer["deadline_at"] < (timezone.now() + timedelta(minutes=25)).isoformat()
