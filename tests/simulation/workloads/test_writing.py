"""A workload written as CSV reads back unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.workloads.catalogue import load_workload, reference_gpu_type
from simulation.workloads.options import WorkloadOptions
from simulation.workloads.synthetic import PROFILES
from tests.simulation.workloads.helpers import assert_same
from tests.simulation.workloads.writing import write_csv, write_throughputs


@given(
    name=st.sampled_from(sorted(PROFILES)),
    seed=st.integers(0, 1000),
    best_effort=st.floats(0, 0.5),
    soft=st.floats(0, 0.5),
    jobs=st.integers(1, 40),
)
def test_a_written_workload_reads_back_the_same(
    tmp_path_factory: pytest.TempPathFactory, name: str, seed: int, best_effort: float, soft: float, jobs: int
) -> None:
    folder = tmp_path_factory.mktemp("written")
    options = WorkloadOptions(jobs=jobs, best_effort_share=best_effort, soft_share=soft)
    workload = load_workload(name, seed=seed, options=options)
    write_csv(workload, folder / "jobs.csv")
    write_throughputs(workload.profiles, folder / "throughput.csv")
    # A file does not say on which kind of GPU its requests are about.
    gpu_type = reference_gpu_type(workload)
    assert_same(load_workload(str(folder / "jobs.csv"), throughputs=folder, gpu_type=gpu_type), workload)


def test_built_in_models_need_no_table_to_be_read_back(tmp_path: Path) -> None:
    workload = load_workload("itp", options=WorkloadOptions(jobs=30))
    write_csv(workload, tmp_path / "jobs.csv")
    assert_same(load_workload(str(tmp_path / "jobs.csv")), workload)


def test_fractions_of_seconds_survive(tmp_path: Path) -> None:
    header = "job_id,submitted_at,iterations,model,global_batch_size,service_class,deadline_at,requested_gpus"
    (tmp_path / "in.csv").write_text(f"{header}\na,0.1,1e7,synthetic-encoder,64,soft,1e9,\n")
    workload = load_workload(str(tmp_path / "in.csv"))
    assert workload.requested_gpus.tolist() == [1]
    write_csv(workload, tmp_path / "out.csv")
    again = load_workload(str(tmp_path / "out.csv"))
    assert_same(again, workload)
    assert again.submitted_at.tolist() == [0.1]
