"""The share of jobs on time lies where ElasticFlow's own simulator puts it (public
traces)."""

from __future__ import annotations

from functools import cache

import pytest

from simulation.engine.asked.settings import PoolSize, SimulationSettings
from simulation.engine.run import Simulation
from simulation.workloads.catalogue import load_workload
from simulation.workloads.errors import TraceError
from simulation.workloads.workload import Workload

TOLERANCE = 0.05

CLUSTERS = {
    "testbed_195job": (PoolSize("A100", 16, 8), 240.0),
    "t4_195job": (PoolSize("T4", 16, 4), 60.0),
    "cluster10": (PoolSize("A100", 32, 8), 60.0),
    "cluster06": (PoolSize("A100", 64, 8), 60.0),
    "cluster01": (PoolSize("A100", 64, 8), 60.0),
}

FIGURES = {
    "testbed_195job": {"edf_artifact": 0.087, "edf_admission_artifact": 0.323, "gandiva_artifact": 0.241,
    "tiresias": 0.462, "themis": 0.410},
    "t4_195job": {"edf_artifact": 0.118, "edf_admission_artifact": 0.410, "gandiva_artifact": 0.092,
    "tiresias": 0.287, "pollux": 0.503},
    "cluster10": {"edf_artifact": 0.777, "edf_admission_artifact": 0.827, "gandiva_artifact": 0.331,
    "tiresias": 0.477},
    "cluster06": {"edf_artifact": 0.108, "edf_admission_artifact": 0.551, "gandiva_artifact": 0.392,
    "tiresias": 0.482},
    "cluster01": {"edf_artifact": 0.187, "edf_admission_artifact": 0.375, "gandiva_artifact": 0.162,
    "tiresias": 0.493},
}  # fmt: skip
"""Measured with the published simulator; Pollux's by its authors."""

EXACT = {"edf_artifact"}
"""Policies that reproduce the published count to the job."""

IN_EVERY_RUN = ("testbed_195job", "t4_195job")


def cells(traces):
    return [(trace, policy) for trace in traces for policy in FIGURES[trace]]


@cache
def workload(trace: str) -> Workload:
    try:
        return load_workload(trace, gpu_type=CLUSTERS[trace][0].kind)
    except TraceError as error:
        pytest.skip(f"the public trace is not here: {error}")


def check(trace: str, policy: str) -> None:
    pool, slot = CLUSTERS[trace]
    asked = SimulationSettings(policy=policy, pools=(pool,), slot_seconds=slot)
    share = float(Simulation(workload(trace), asked).run().jobs.on_time.mean())
    assert share == pytest.approx(FIGURES[trace][policy], abs=0.0005 if policy in EXACT else TOLERANCE)


#: Its genetic search takes seconds.
SEARCHING = ("pollux",)


@pytest.mark.parametrize(
    ("trace", "policy"),
    [
        pytest.param(trace, policy, marks=pytest.mark.slow if policy in SEARCHING else ())
        for trace, policy in cells(IN_EVERY_RUN)
    ],
)
def test_the_share_on_time_is_the_published_one(trace, policy):
    check(trace, policy)


@pytest.mark.slow
@pytest.mark.parametrize(("trace", "policy"), cells(sorted(set(CLUSTERS) - set(IN_EVERY_RUN))))
def test_the_share_on_time_is_the_published_one_on_long_traces(trace, policy):
    check(trace, policy)
