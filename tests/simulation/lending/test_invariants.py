"""Invariants of every policy that shares out workers, with constant loans and reclaims."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.lyra.reclaiming.methods import ReclaimMethod
from scheduling.core.question.two_phase_options import TwoPhaseOptions
from scheduling.policies.shares_workers import SharesWorkers
from simulation.engine.asked.lending import Lending
from simulation.engine.asked.pauses import Pauses
from simulation.engine.asked.settings import PoolSize, SimulationSettings
from simulation.engine.asked.sharing import SharingSettings
from simulation.engine.run import Simulation
from simulation.inference.usage import UsageSeries
from simulation.outcome import JobEnd, RunOutcome
from simulation.policies import POLICIES
from simulation.workloads.linear import TRAINING_GPU, linear_workload
from simulation.workloads.scenarios import RULES, Scenario, ScenarioRules
from tests.plugins.examples import examples

SHARING = sorted(name for name, policy in POLICIES.items() if isinstance(policy, SharesWorkers))
#: They change jobs at every event: their runs take seconds.
OFTEN_RESIZING = ("afs", "lyra_gandiva")
SEARCHING = ("lyra_pollux",)
"""Takes seconds for each run."""
WORLDS = {
    "seed": st.integers(0, 2**16),
    "scenario": st.sampled_from(list(Scenario)),
    "method": st.sampled_from(list(ReclaimMethod)),
}


CHOICES = st.builds(
    TwoPhaseOptions,
    value_total_work=st.booleans(),
    emptied_as_idle=st.booleans(),
    elastic_moves=st.booleans(),
    retry_when_freed=st.booleans(),
)


@settings(max_examples=examples(0.1))
@given(**WORLDS)
@pytest.mark.parametrize(
    "policy",
    [
        pytest.param(policy, marks=[pytest.mark.slow] if policy in OFTEN_RESIZING else [])
        for policy in sorted({*SHARING} - {*SEARCHING})
    ],
)
def test_random_jobs_beside_a_restless_inference_cluster(
    policy: str, seed: int, scenario: Scenario, method: ReclaimMethod
) -> None:
    check_run(policy, seed, RULES[scenario], Lending(6, restless_usage(seed), reclaim=method))


@pytest.mark.slow
@settings(max_examples=examples(0.1))
@given(**WORLDS)
@pytest.mark.parametrize("policy", SEARCHING)
def test_the_same_under_a_policy_that_searches(
    policy: str, seed: int, scenario: Scenario, method: ReclaimMethod
) -> None:
    """Half as many jobs in half the time compete as much."""
    lending = Lending(6, restless_usage(seed), reclaim=method)
    check_run(policy, seed, RULES[scenario], lending, jobs=12, arriving_seconds=3000.0)


@pytest.mark.slow
@settings(max_examples=examples(0.1))
@given(**WORLDS)
@pytest.mark.parametrize("policy", SEARCHING)
def test_as_many_jobs_under_a_policy_that_searches(
    policy: str, seed: int, scenario: Scenario, method: ReclaimMethod
) -> None:
    check_run(policy, seed, RULES[scenario], Lending(6, restless_usage(seed), reclaim=method))


@settings(max_examples=examples(0.15))
@given(
    seed=st.integers(0, 2**16), scenario=st.sampled_from(list(Scenario)), choices=CHOICES, other=st.booleans()
)
def test_the_same_by_other_rules_where_lyra_leaves_a_choice(
    seed: int, scenario: Scenario, choices: TwoPhaseOptions, other: bool
) -> None:
    rules = replace(RULES[scenario], mixing_efficiency_alone=0.7 if other else 1.0)
    usage = restless_usage(seed)
    lending = Lending(6, usage, count_owned_servers=other, fewest_workers_first=other)
    outcome, again = (check_run("lyra", seed, rules, lending, choices) for _ in range(2))
    assert again.jobs.completed_at.tolist() == outcome.jobs.completed_at.tolist()


def restless_usage(seed: int) -> UsageSeries:
    """Return usage that lends and reclaims every five minutes for five hours and then lends the maximum."""
    draw = np.random.default_rng([seed, 1])
    return UsageSeries("restless", "drawn", np.concatenate((draw.uniform(0, 1, 60), np.zeros(400))))


def check_run(
    policy: str,
    seed: int,
    rules: ScenarioRules,
    lending: Lending,
    choices: TwoPhaseOptions | None = None,
    *,
    jobs: int = 25,
    arriving_seconds: float = 6000.0,
) -> RunOutcome:
    """Check that every job of a random run ends and every invariant holds."""
    draw = np.random.default_rng(seed)
    workload = linear_workload(
        "random",
        "drawn",
        np.sort(draw.uniform(0, arriving_seconds, jobs)),
        draw.choice([1, 2, 4, 8, 16], jobs),
        draw.uniform(60, 4000, jobs),
    )
    run_settings = SimulationSettings(
        policy=policy,
        pools=(PoolSize(TRAINING_GPU, 3, 8),),
        slot_seconds=30.0,
        pauses=Pauses.NONE,
        seed=seed,
        check_invariants=True,
        sharing=SharingSettings(
            rules=replace(rules, elastic_job_share=max(0.3, rules.elastic_job_share)),
            lending=lending,
            two_phase=choices or TwoPhaseOptions(),
        ),
    )
    outcome = Simulation(workload, run_settings).run()
    assert set(outcome.jobs.end) == {JobEnd.COMPLETED}
    return outcome
