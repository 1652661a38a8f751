"""Promises on owned servers beside other work on borrowed servers, not covered by ElasticFlow or Lyra."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest

from scheduling.core.lyra.reclaiming.methods import ReclaimMethod
from scheduling.core.question.snapshot import ServiceClass
from simulation.engine.asked.lending import Lending
from simulation.engine.asked.settings import PoolSize, SimulationSettings
from simulation.engine.asked.sharing import SharingSettings
from simulation.engine.run import Simulation
from simulation.inference.catalogue import read_usage
from simulation.inference.usage import UsageSeries
from simulation.outcome import RunOutcome
from simulation.reports.summary import summary
from simulation.workloads.catalogue import load_workload
from simulation.workloads.options import WorkloadOptions

SEEDS = (0, 2, 5, 6)
INFERENCE_SERVERS = 8
OWN_KIND = "A100"
"""GPU kind of the training servers; inference servers have T4s by default."""


def storm(seed: int) -> UsageSeries:
    """Return demand that jumps between its extremes, so that reclaims come at any time."""
    jumps = np.random.default_rng(seed).random(2000) < 0.3
    return UsageSeries("storm", "drawn at random", np.where(jumps, 1.0, 0.1))


@cache
def run(
    seed: int, usage: str, kind: str = "T4", trace: str = "jobs=70,mean_interarrival_seconds=700"
) -> RunOutcome:
    """Run a busy day on four servers of eight GPUs; nearly a third of the jobs is best effort, and all run on
    both kinds."""
    workload = load_workload(
        f"elasticflow:{trace}",
        seed=seed,
        options=WorkloadOptions(best_effort_share=0.3),
    )
    lending = None
    if usage != "none":
        series = storm(seed) if usage == "storm" else read_usage("daily", seed=seed)
        lending = Lending(INFERENCE_SERVERS, series, ReclaimMethod.IMPROVED, inference_gpu_type=kind)
    settings = SimulationSettings(
        policy="punctual",
        pools=(PoolSize("A100", 4, 8),),
        slot_seconds=240.0,
        seed=seed,
        sharing=SharingSettings(rules=None, lending=lending),
    )
    return Simulation(workload, settings).run()


#: Cases of the quick tests; `make test-all` takes all.
FEW = {(SEEDS[0], "daily", "T4"), (SEEDS[0], "daily", OWN_KIND), (SEEDS[0], "storm", OWN_KIND)}
RECLAIMS = [
    pytest.param(seed, usage, kind, marks=[] if (seed, usage, kind) in FEW else pytest.mark.slow)
    for seed in SEEDS
    for usage in ("daily", "storm")
    for kind in ("T4", OWN_KIND)
]
SOME_SEEDS = pytest.mark.parametrize(
    "seeds", [SEEDS[:1], pytest.param(SEEDS, marks=pytest.mark.slow)], ids=["few", "all"]
)


@pytest.mark.parametrize(("seed", "usage", "kind"), RECLAIMS)
def test_no_reclaim_makes_a_promised_job_late(seed: int, usage: str, kind: str) -> None:
    outcome = run(seed, usage, kind)
    facts = summary(outcome)
    assert facts["admitted_late"] == 0
    assert outcome.loans is not None
    assert outcome.loans.reclaims


@pytest.mark.parametrize("seed", [24, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (10, 35))])
def test_room_for_a_reclaim_makes_no_promised_job_late(seed: int) -> None:
    """In these runs, replanning jobs one by one to make room would make promised jobs late."""
    facts = summary(run(seed, "daily", OWN_KIND, "jobs=200,mean_interarrival_seconds=900"))
    assert facts["admitted_late"] == 0


@SOME_SEEDS
def test_promised_jobs_end_sooner_where_their_own_kind_of_gpu_is_lent(seeds: Sequence[int]) -> None:
    def mean_completion(outcome: RunOutcome) -> float:
        jobs = outcome.jobs
        done = jobs.promised & np.isfinite(jobs.completed_at)
        return float((jobs.completed_at - jobs.submitted_at)[done].mean())

    without, with_loans = (
        [mean_completion(run(seed, usage, OWN_KIND)) for seed in seeds] for usage in ("none", "daily")
    )
    assert np.mean(with_loans) < 0.95 * np.mean(without)


@pytest.mark.parametrize("seed", SEEDS[:1])
def test_promised_jobs_never_run_on_borrowed_servers_of_another_kind(seed: int) -> None:
    workload = load_workload(
        "elasticflow:jobs=60,mean_interarrival_seconds=500",
        seed=seed,
        options=WorkloadOptions(best_effort_share=0.3),
    )
    borrowed_by: set[int] = set()

    def watch(simulation, pool, answer) -> None:
        owner = np.repeat(pool.rows, np.diff(pool.offsets))
        borrowed_by.update(owner[pool.addresses >= pool.size.gpus].tolist())

    settings = SimulationSettings(
        policy="punctual",
        pools=(PoolSize("A100", 2, 8),),
        slot_seconds=60.0,
        seed=seed,
        sharing=SharingSettings(rules=None, lending=Lending(INFERENCE_SERVERS, storm(seed))),
    )
    outcome = Simulation(workload, settings, watch=watch).run()
    assert borrowed_by, "some job ran on borrowed GPUs"
    assert not any(outcome.jobs.promised[row] for row in borrowed_by)
    assert {outcome.jobs.service_class[row] for row in borrowed_by} <= {
        ServiceClass.BEST_EFFORT,
        ServiceClass.SOFT,
    }


@SOME_SEEDS
def test_loans_keep_deadlines_and_end_best_effort_sooner(
    seeds: Sequence[int],
) -> None:
    """GPUs held by best effort affect a newcomer's plan, so single jobs differ either way."""
    without, with_loans = ([summary(run(seed, usage)) for seed in seeds] for usage in ("none", "daily"))
    met, met_without = (sum(facts["deadlines_met"] for facts in runs) for runs in (with_loans, without))
    assert met >= 0.99 * met_without
    assert sum(facts["best_effort_mean_jct_seconds"] for facts in with_loans) < sum(
        facts["best_effort_mean_jct_seconds"] for facts in without
    )
