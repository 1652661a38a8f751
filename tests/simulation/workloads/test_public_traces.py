"""The public traces are read as their publishers describe them; skipped without the files."""

from __future__ import annotations

import numpy as np
import pytest

from simulation.workloads.catalogue import load_workload, reference_gpu_type
from simulation.workloads.pollux_tables import pollux_points
from simulation.workloads.public_traces import PUBLIC_TRACES
from simulation.workloads.throughputs import read_throughputs
from tests.simulation.workloads.helpers import public_data, throughput_of

SMALL = ["testbed_195job", "cluster01", "cluster06", "cluster10"]
LARGE = ["cluster02", "cluster03", "cluster04", "cluster05", "cluster07", "cluster08", "cluster09"]


@pytest.mark.parametrize("name", [*SMALL, *(pytest.param(name, marks=pytest.mark.slow) for name in LARGE)])
def test_an_itp_trace_is_what_its_publishers_derived(name: str) -> None:
    public_data()
    jobs = load_workload(name)
    assert jobs.jobs == PUBLIC_TRACES[name].jobs
    assert reference_gpu_type(jobs) == "A100"
    throughput = np.array([throughput_of(jobs, row, "A100") for row in range(jobs.jobs)])
    assert (np.abs(np.floor(jobs.requested_seconds * throughput) - jobs.iterations) <= 1).all()
    tightness = (jobs.deadline_at - jobs.submitted_at) / jobs.requested_seconds
    assert tightness.min() >= 0.499
    assert tightness.max() <= 1.5
    assert tightness.mean() == pytest.approx(1.0, abs=0.05)
    assert not any("not measured" in note for note in jobs.notes)


def test_the_testbed_trace_has_its_5490_gpu_hours() -> None:
    public_data()
    jobs = load_workload("testbed_195job")
    hours = float((jobs.requested_gpus * jobs.requested_seconds).sum()) / 3600
    assert hours == pytest.approx(5490, abs=1)
    assert (jobs.submitted_at[0], jobs.submitted_at[-1]) == (3_715_485, 3_887_530)


def test_the_t4_trace_is_measured_on_t4() -> None:
    public_data()
    jobs = load_workload("t4_195job")
    assert jobs.jobs == 195
    assert reference_gpu_type(jobs) == "T4"


def test_both_layouts_of_the_throughputs_hold_the_same_points() -> None:
    data = public_data()
    if not (data / "traces" / "elasticflow-throughputs").is_dir():
        pytest.skip("the wide throughput tables are not there")
    long, wide = (
        read_throughputs(data / place) for place in ("elasticflow", "traces/elasticflow-throughputs")
    )
    assert long.points == wide.points
    assert len(long.measured_on("A100")) == 14 + 3


def test_pollux_tables_give_the_published_t4_throughputs() -> None:
    data = public_data()
    if not (data / "elasticflow" / "pollux_t4").is_dir():
        pytest.skip("Pollux's tables are not there")
    published = read_throughputs(data / "elasticflow")
    for pair in published.measured_on("T4"):
        assert pollux_points(data / "elasticflow" / "pollux_t4", *pair) == pytest.approx(
            published.points[pair]["T4"], rel=1e-9
        )


def test_philly_derived_trace_equals_its_filtered_virtual_cluster() -> None:
    data = public_data()
    if not (data / "traces" / "philly" / "philly.csv").is_file():
        pytest.skip("Philly is not there")
    raw = load_workload("philly_all:virtual_cluster=103959")
    derived = load_workload("philly_103959")
    assert raw.jobs == derived.jobs == 876
    assert sorted(raw.requested_gpus.tolist()) == sorted(derived.requested_gpus.tolist())
    assert sorted(raw.requested_seconds.tolist()) == sorted(derived.requested_seconds.tolist())


@pytest.mark.parametrize(
    "name",
    ["pollux_6", "pollux_realistic_1", "gavel_2869ce", "shockwave_120", "tiresias_60", "resnet_cifar_trace"],
)
def test_other_public_traces_can_be_simulated(name: str) -> None:
    data = public_data()
    if not (data / PUBLIC_TRACES[name].place).is_file():
        pytest.skip(f"{name} is not there; it is public: {PUBLIC_TRACES[name].original}")
    jobs = load_workload(name)
    assert jobs.jobs == PUBLIC_TRACES[name].jobs
    assert (jobs.iterations > 0).all()
    assert (jobs.requested_seconds > 0).all()
