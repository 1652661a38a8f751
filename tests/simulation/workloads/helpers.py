"""Small tables and traces for tests of workloads."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from simulation.workloads.public_traces import DEFAULT_FOLDER, VARIABLE
from simulation.workloads.workload import Workload

# A few points of two models, one of them on two GPU types; resnet on 16 GPUs could not be run.
TABLE = """gpu_type,model,global_batch_size,num_gpu,iterations_per_second
A100,bert,64,1,6.030661553957379
A100,bert,64,2,8.643477263279834
A100,bert,64,4,10.356284859349557
A100,resnet50,128,1,3.5
A100,resnet50,128,2,6.5
A100,resnet50,128,8,16.5
A100,resnet50,128,16,0
A100,resnet50,128,32,nan
A100,resnet50,128,64,
T4,resnet50,128,1,0.5
T4,ncf,32768,1,46.9
"""

ITP_HEADER = "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration"
ITP_ROW = "6b2d9ccc,16566,40285,bert,21347,64,4,3890"


def write(folder: Path, name: str, text: str) -> Path:
    """Write a file with this text."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="")
    return path


def table(folder: Path) -> Path:
    """The small throughput table, in a folder."""
    return write(folder, "throughput.csv", TABLE).parent


def public_data() -> Path:
    """Return the folder with public traces; skip the test without one."""
    folder = Path(os.environ.get(VARIABLE) or DEFAULT_FOLDER)
    if not (folder / "elasticflow" / "traces").is_dir():
        pytest.skip(f"no public traces in {folder}: set {VARIABLE} to a folder that has them")
    return folder


def throughput_of(workload: Workload, row: int, gpu_type: str) -> float:
    """Return the iterations per second of a job on its requested GPUs."""
    measured = workload.profiles[int(workload.profile_of[row])].by_kind[gpu_type]
    at = int(np.flatnonzero(measured.gpus == workload.requested_gpus[row])[0])
    return float(measured.iterations_per_second[at])


def assert_same(first: Workload, second: Workload) -> None:
    """Assert that both have the same jobs and curves."""
    assert first.job_id == second.job_id
    assert first.service_class == second.service_class
    for column in (
        "submitted_at",
        "deadline_at",
        "iterations",
        "profile_of",
        "requested_gpus",
        "requested_seconds",
    ):
        assert getattr(first, column).tolist() == getattr(second, column).tolist(), column
    assert [(p.model, p.global_batch_size, list(p.by_kind)) for p in first.profiles] == [
        (p.model, p.global_batch_size, list(p.by_kind)) for p in second.profiles
    ]
    for mine, theirs in zip(first.profiles, second.profiles, strict=True):
        for gpu_type, measured in mine.by_kind.items():
            same = theirs.by_kind[gpu_type]
            assert measured.gpus.tolist() == same.gpus.tolist()
            assert measured.iterations_per_second.tolist() == same.iterations_per_second.tolist()
