"""Writing a workload and its throughputs, to be read again by the generic importer and the table reader."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from math import isinf
from pathlib import Path

from simulation.workloads.importers.generic import COLUMNS, OPTIONAL_COLUMN
from simulation.workloads.workload import ModelProfile, Workload


def write_csv(workload: Workload, path: Path) -> None:
    """Write the jobs as Punctual's own CSV, with numbers that are read back exactly.

    Raises OSError when the file cannot be written.
    """
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow((*COLUMNS, OPTIONAL_COLUMN))
        for row in range(workload.jobs):
            profile = workload.profiles[int(workload.profile_of[row])]
            deadline = float(workload.deadline_at[row])
            writer.writerow(
                (
                    workload.job_id[row],
                    _number(float(workload.submitted_at[row])),
                    _number(float(workload.iterations[row])),
                    profile.model,
                    profile.global_batch_size,
                    workload.service_class[row].value,
                    "" if isinf(deadline) else _number(deadline),
                    int(workload.requested_gpus[row]),
                    _number(float(workload.requested_seconds[row])),
                )
            )


def write_throughputs(profiles: Iterable[ModelProfile], path: Path) -> None:
    """Writes the long throughput table. Raises OSError when the file cannot be written."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("gpu_type", "model", "global_batch_size", "num_gpu", "iterations_per_second"))
        for profile in profiles:
            for gpu_type, measured in profile.by_kind.items():
                for gpus, rate in zip(
                    measured.gpus.tolist(), measured.iterations_per_second.tolist(), strict=True
                ):
                    writer.writerow((gpu_type, profile.model, profile.global_batch_size, gpus, _number(rate)))


def _number(value: float) -> str:
    """The shortest text that reads back as ``value``, without a fraction where there is none."""
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
