"""Nothing that must always hold is broken, whatever policy shares out the workers, with loans and reclaims all the time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.reclaiming import ReclaimMethod
from scheduling.policies import POLICIES
from scheduling.policies.shares_workers import SharesWorkers
from simulation.engine.run import Simulation
from simulation.engine.settings import Pauses, PoolSize, SimulationSettings
from simulation.engine.sharing import Lending, SharingSettings
from simulation.inference.usage import UsageSeries
from simulation.outcome import JobEnd
from simulation.workloads.linear import TRAINING_GPU, linear_workload
from simulation.workloads.scenarios import RULES, Scenario

SHARING = sorted(name for name, policy in POLICIES.items() if isinstance(policy, SharesWorkers))


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    scenario=st.sampled_from(list(Scenario)),
    method=st.sampled_from(list(ReclaimMethod)),
)
@pytest.mark.parametrize("policy", SHARING)
def test_random_jobs_beside_a_restless_inference_cluster(
    policy: str, seed: int, scenario: Scenario, method: ReclaimMethod
) -> None:
    draw = np.random.default_rng(seed)
    jobs = 25
    workload = linear_workload(
        "random",
        "drawn",
        np.sort(draw.uniform(0, 6000, jobs)),
        draw.choice([1, 2, 4, 8, 16], jobs),
        draw.uniform(60, 4000, jobs),
    )
    usage = UsageSeries("restless", "drawn", np.concatenate((draw.uniform(0, 1, 60), np.zeros(400))))
    asked = SimulationSettings(
        policy=policy,
        pools=(PoolSize(TRAINING_GPU, 3, 8),),
        slot_seconds=30.0,
        pauses=Pauses.NONE,
        seed=seed,
        check_invariants=True,
        sharing=SharingSettings(
            rules=replace(RULES[scenario], elastic_job_share=max(0.3, RULES[scenario].elastic_job_share)),
            lending=Lending(6, usage, reclaim=method),
        ),
    )
    outcome = Simulation(workload, asked).run()
    assert set(outcome.jobs.end) == {JobEnd.COMPLETED}
    again = Simulation(workload, asked).run()
    assert again.jobs.completed_at.tolist() == outcome.jobs.completed_at.tolist()
