"""Goodput curves: the best batch size on each GPU count, in iterations of the job's own batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simulation.engine.asked.pauses import Pauses
from simulation.engine.asked.settings import PoolSize, SimulationSettings
from simulation.engine.run import Simulation
from simulation.workloads.goodput import goodput_points, with_goodput
from simulation.workloads.workload import MeasuredThroughput, Workload
from tests.simulation.engine.worlds import Job, workload

OWN_BATCH = 16


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """One application: a step costs 0.1 s on 8 samples and 0.4 s on 16; batches of 16 need 60 of the 100
    iterations of 8."""
    folder = tmp_path / "bert"
    folder.mkdir()
    (folder / "placements.csv").write_text(
        "placement,local_bsz,step_time,sync_time\n1,8,0.1,0.0\n1,16,0.4,0.0\n2,4,0.1,0.0\n2,8,0.1,0.0\n"
    )
    (folder / "scalability.csv").write_text(
        "num_nodes,num_replicas,local_bsz,step_time,sync_time\n6,24,1,1.0,0.5\n"
    )
    for batch, iterations in ((8, 100), (16, 60)):
        (folder / f"validation-{batch}.csv").write_text(
            f"progress,iteration,metric,grad_sqr,grad_var\n1.0,{iterations},0,0,0\n"
        )
    return tmp_path


def one_bert() -> Workload:
    made = workload(
        [
            Job(
                at=0.0,
                iterations=60.0,
                deadline_at=1e4,
                batch=OWN_BATCH,
                by_kind={"T4": {1: 2.5, 2: 10.0}},
            )
        ]
    )
    profile = made.profiles[0]
    return replace(made, profiles=(replace(profile, model="bert"),))


def test_the_best_batch_size_counts_by_what_it_does_for_the_training(tables):
    """One GPU: 10 steps of 8 a second, each worth 60/100 of a step of 16, against 2.5 steps of 16. Two: 10
    steps of 16."""
    assert goodput_points(tables, "bert", OWN_BATCH) == pytest.approx({1: 6.0, 2: 10.0})


def test_workload_without_tables_is_unchanged(tables):
    made = one_bert()
    assert goodput_points(tables, "ncf", OWN_BATCH) == {}
    assert with_goodput(made, None) is made
    other = workload([Job(at=0.0, iterations=1.0)])
    assert with_goodput(other, tables) is other


def test_only_a_policy_that_adapts_batch_sizes_runs_along_them(tables):
    adapted = with_goodput(one_bert(), tables)
    curve = adapted.profiles[0].adapted["T4"]
    assert isinstance(curve, MeasuredThroughput)
    assert curve.iterations_per_second.tolist() == pytest.approx([6.0, 10.0])
    assert "Pollux" in adapted.notes[-1]

    def seconds(policy: str) -> float:
        asked = SimulationSettings(policy, (PoolSize("T4", 1, 1),), slot_seconds=1.0, pauses=Pauses.NONE)
        return float(np.asarray(Simulation(adapted, asked).run().jobs.completed_at)[0])

    assert seconds("pollux") == pytest.approx(10.0)
    assert seconds("tiresias") == pytest.approx(24.0)
