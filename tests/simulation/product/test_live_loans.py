"""Live studies with loans: GPU kind, usage, and jobs that stay on borrowed servers."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from django.utils import timezone

from cluster.models import Cluster
from lending.models import InferenceCluster, UsageSample
from projects.errors import InvalidRequest
from scheduling.models import CurveLevel, Job
from scheduling.services.rows.borrowed import key_on
from simulation.engine.run import Simulation
from simulation.live.capture import capture
from simulation.live.lent import serving_now
from simulation.live.state import LiveInference, LiveState, pack, unpack
from simulation.live.under_way import under_way
from simulation.models import SimulationStudy
from simulation.outcome import JobEnd, RunOutcome
from simulation.reports.parquet import read_parquet
from simulation.selectors.choices import live_cluster
from simulation.services.executing import execute_run
from simulation.services.lending import sharing_of
from tests.control_plane.conftest import (  # noqa: F401 - fixtures
    SPEED,
    borrowed,
    clock,
    cluster,
    curves_known,
    inference,
    owned,
    submit,
    version,
)
from tests.control_plane.simulated_agent import KIND, SimulatedAgent, settle
from tests.factories import ScalingCurveFactory
from tests.lending.control_plane.orders import ask_back, known_on_eight, lend, servers_of
from tests.simulation.product.conftest import runs_of

pytestmark = pytest.mark.django_db(transaction=True)
Submit = Callable[..., Job]
Start = Callable[..., SimulationStudy]
Agents = tuple[SimulatedAgent, SimulatedAgent]
LIVE: dict[str, Any] = {
    "source": "live",
    "trace": "",
    "policies": ("punctual",),
    "servers": (),
    "gpus_per_server": None,
    "limit_jobs": None,
    "slot_seconds": 5.0,
}


def state_now(**options: Any) -> LiveState:
    return capture(Cluster.objects.get(), timezone.now(), **options)


def outcome_of(study: SimulationStudy, store: Any, number: int) -> RunOutcome:
    run = runs_of(study)[number]
    assert execute_run(run.pk), runs_of(study)[number].error
    return read_parquet(store / runs_of(study)[number].results_key)


def gpus_at_first(outcome: RunOutcome) -> dict[str, int]:
    """Return the GPUs of each job before the first change by the policy."""
    changes = outcome.allocations
    gpus_by_job: dict[str, int] = {}
    for time, row, gpus in zip(
        changes.time.tolist(), changes.job.tolist(), changes.gpus.tolist(), strict=True
    ):
        if time == 0.0:
            gpus_by_job.setdefault(outcome.jobs.job_id[row], gpus)
    return gpus_by_job


@pytest.fixture
def grown(
    inference: InferenceCluster,  # noqa: F811 - the fixture
    owned: SimulatedAgent,  # noqa: F811 - the fixture
    borrowed: Agents,  # noqa: F811 - the fixture
    submit: Submit,  # noqa: F811 - the fixture
) -> Job:
    """Return a promised job that has grown from its own server onto a loaned one of the same kind."""
    job = submit("slo", seconds=36_000, iterations=1_000_000)
    settle(owned, *borrowed)
    job.refresh_from_db()
    known_on_eight(job)
    lend(inference, "serving-1")
    settle(owned, *borrowed)
    assert servers_of(job) == {"node-1", "serving-1"}
    return job


def test_stored_live_state_keeps_its_loans(
    inference: InferenceCluster,  # noqa: F811 - the fixture
    grown: Job,
) -> None:
    state = state_now(inference=LiveInference(KIND, "serving", (0.25, 0.5), 60.0, 0.1))
    assert (state.servers, state.gpus_per_server) == (1, 4), "borrowed servers are not the cluster's own"
    assert state.servers_on_loan == 1
    assert unpack(pack(state)) == state
    live = live_cluster()
    assert live is not None
    assert live.servers == 1
    assert (live.inference_servers, live.inference_gpu_type) == (2, KIND)
    # A server on its way back is not lent at the beginning.
    ask_back(inference, 1)
    state = state_now(inference=LiveInference(KIND))
    assert state.servers_on_loan == 0
    assert [len(running.addresses) for running in under_way(state, 1, 4, lent_servers=2)] == [4]


def check_invariants(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the invariants of all following simulations after each event."""
    original = Simulation.__init__

    def checked(self: Simulation, workload: Any, settings: Any, *more: Any, **options: Any) -> None:
        object.__setattr__(settings, "check_invariants", True)
        original(self, workload, settings, *more, **options)

    monkeypatch.setattr(Simulation, "__init__", checked)


def test_borrowed_job_stays_on_its_loaned_server(
    grown: Job,
    start: Start,
    store: Any,
    submit: Submit,  # noqa: F811 - the fixture
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policies = {"policies": ("punctual", "lyra")}
    study = start(**{**LIVE, **policies}, inference_servers=(0, 2), headroom=0.0)
    runs = [(run.policy, run.inference_servers) for run in runs_of(study)]
    first = {}
    for number, run in enumerate(runs):
        outcome = outcome_of(study, store, number)
        first[run] = gpus_at_first(outcome)
        assert outcome.jobs.end == (JobEnd.COMPLETED,)
        assert outcome.broken == {}
        assert (outcome.loans is not None) == (run[1] > 0)
    assert first["punctual", 2] == first["lyra", 2] == {grown.pk: 8}
    assert first["punctual", 0] == {grown.pk: 4}, "it continues on its own server, as after a reclaim"
    assert "1 server is on loan now" in " ".join(study.notes)
    # Invariants also hold with waiting jobs and a usage that reclaims servers.
    submit("best_effort", iterations=20_000)
    check_invariants(monkeypatch)
    study = start(**LIVE, inference_servers=(2, 4), inference_usage="bursty", headroom=0.0)
    for number in range(2):
        assert outcome_of(study, store, number).broken == {}


def test_live_jobs_have_their_curves_on_the_lent_kind(
    owned: SimulatedAgent,  # noqa: F811 - the fixture
    inference: InferenceCluster,  # noqa: F811 - the fixture
    submit: Submit,  # noqa: F811 - the fixture
    start: Start,
    store: Any,
) -> None:
    serving = SimulatedAgent.enrol("serving-1", 4, SPEED, inference, kind="T4")
    measured_job = submit("best_effort", iterations=20_000)
    other = submit("best_effort", iterations=20_000, data=({"name": "others"},))
    settle(owned, serving)
    ScalingCurveFactory.create(key=key_on(measured_job, "T4"), gpu_kind="T4", levels={1: 3.0, 2: 5.0})
    report(inference, [0.2] * 288)  # or the synthetic day would begin now, and at its peak nothing is lent
    study = start(**LIVE, inference_servers=(0, 4), headroom=0.0)
    assert study.inference_gpu_type == "T4"
    assert "Of 2 jobs 1 was measured on T4" in " ".join(study.notes)
    state = unpack(bytes(study.live_state or b""))
    levels = {job.id: job.lent_levels for job in state.jobs}
    assert [(gpus, rate) for gpus, rate, _ in levels[measured_job.pk]] == [(1, 3.0), (2, 5.0)]
    assert levels[other.pk] == ()
    loans = outcome_of(study, store, 1).loans
    assert loans is not None
    assert loans.on_loan.max() > 0


def test_without_inference_cluster_own_kind_and_synthetic_curve_apply(
    owned: SimulatedAgent,  # noqa: F811 - the fixture
    submit: Submit,  # noqa: F811 - the fixture
    start: Start,
) -> None:
    submit("best_effort")
    settle(owned)
    with pytest.raises(InvalidRequest, match=KIND) as refusal:
        start(**LIVE, inference_servers=(2,), inference_gpu_type="abacus")
    assert list(refusal.value.errors or {}) == ["inference_gpu_type"], "no job was measured on that kind"
    assert not SimulationStudy.objects.exists()
    study = start(**LIVE, inference_servers=(2,), inference_usage="measured")
    assert (study.inference_gpu_type, study.inference_usage, study.reclaim) == (KIND, "daily", "improved")
    assert "no live inference cluster" in " ".join(study.notes)
    check_synthetic_day_begins_now(study)
    check_older_stored_state_is_read(state_now())


def check_synthetic_day_begins_now(study: SimulationStudy) -> None:
    sharing = sharing_of(study, runs_of(study)[0])
    assert sharing is not None
    assert sharing.lending is not None
    usage = sharing.lending.usage.usage
    now = timezone.now()
    lowest = (24 - now.hour - now.minute / 60 + 5) % 24
    # The trough is at five in the morning; the noise of a sample is a twentieth of the day's swing.
    hours = np.arange(288) / 12
    nearest = hours[np.argmin(np.convolve(np.tile(usage[:288], 3), np.ones(13) / 13, "same")[288:576])]
    assert min(abs(nearest - lowest), 24 - abs(nearest - lowest)) < 2


def check_older_stored_state_is_read(state: LiveState) -> None:
    stored = json.loads(zlib.decompress(pack(state)))
    for name in ("servers_on_loan", "inference"):
        del stored[name]
    for job in stored["jobs"]:
        del job["flexible"], job["lent_levels"]
    assert unpack(zlib.compress(json.dumps(stored).encode())) == state


def report(inference: InferenceCluster, usage: list[float], source: str = "measured") -> None:  # noqa: F811
    """Report five-minute samples, the last of which ends now."""
    now = timezone.now()
    UsageSample.objects.bulk_create(
        UsageSample(
            inference_cluster=inference,
            period_ends_at=now - timedelta(minutes=5 * age),
            usage=value,
            source=source,
        )
        for age, value in enumerate(reversed(usage))
    )


def test_usage_is_that_of_the_live_inference_cluster_if_measured(
    owned: SimulatedAgent,  # noqa: F811 - the fixture
    inference: InferenceCluster,  # noqa: F811 - the fixture
    borrowed: Agents,  # noqa: F811 - the fixture
    submit: Submit,  # noqa: F811 - the fixture
    start: Start,
) -> None:
    submit("best_effort")
    settle(owned, *borrowed)
    InferenceCluster.objects.update(
        headroom_fraction=0.3, reclaim_method="lyra", forecast_margin_fraction=0.1
    )
    report(inference, [0.5] * 3)
    study = start(**LIVE, inference_servers=(4,))
    assert study.inference_usage == "daily"
    assert "too few samples" in " ".join(study.notes)
    UsageSample.objects.all().delete()
    report(inference, [0.9] * 6 + [0.2] * 288, "stand-in: a curve")
    study = start(**LIVE, inference_servers=(4,))
    assert (study.inference_usage, study.reclaim, study.headroom) == ("measured", "lyra", 0.3)
    notes = " ".join(study.notes)
    assert "serving in its last 1 d" in notes
    assert "stand-in: a curve" in notes
    sharing = sharing_of(study, runs_of(study)[0])
    assert sharing is not None
    assert sharing.lending is not None
    assert sharing.lending.usage.usage.tolist() == [0.2] * 288
    assert sharing.lending.forecast_margin == 0.1


def test_a_measured_day_begins_at_the_present_hour(
    inference: InferenceCluster,  # noqa: F811 - the fixture
) -> None:
    day = np.linspace(0.0, 0.9, 288)
    report(inference, day.tolist())
    later = timezone.now() + timedelta(minutes=10)
    usage = serving_now(Cluster.objects.get(), later).inference.usage
    assert usage == pytest.approx(np.roll(day, -2), abs=1e-6)


def test_gaps_in_measured_usage_are_bridged(
    inference: InferenceCluster,  # noqa: F811 - the fixture
) -> None:
    report(inference, [0.2] * 10 + [0.4] * 10)
    UsageSample.objects.filter(usage=0.4).order_by("period_ends_at").first().delete()  # type: ignore[union-attr]
    usage = serving_now(Cluster.objects.get(), timezone.now()).inference.usage
    assert len(usage) == 20
    assert usage[10] == pytest.approx(0.3)


def test_a_run_ends_although_a_job_can_run_nowhere(
    owned: SimulatedAgent,  # noqa: F811 - the fixture
    submit: Submit,  # noqa: F811 - the fixture
    start: Start,
    store: Any,
) -> None:
    submit("best_effort", iterations=20_000)
    settle(owned)
    CurveLevel.objects.filter(gpus__lt=4).delete()
    study = start(**{**LIVE, "gpus_per_server": 2}, inference_servers=(1,), inference_gpu_type=KIND)
    assert outcome_of(study, store, 0).jobs.end == (JobEnd.UNFINISHED,)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["opportunistic", "afs"])
def test_sharing_policies_start_from_the_present_loans(
    grown: Job, start: Start, store: Any, policy: str
) -> None:
    study = start(**{**LIVE, "policies": (policy,)}, inference_servers=(2,), headroom=0.0)
    outcome = outcome_of(study, store, 0)
    assert gpus_at_first(outcome) == {grown.pk: 8}
    assert outcome.jobs.end == (JobEnd.COMPLETED,)
