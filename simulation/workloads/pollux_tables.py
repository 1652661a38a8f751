"""Throughput and length of training from the tables that Pollux measured (4 T4 GPUs a server).

``placements.csv`` and ``scalability.csv`` hold seconds per step by placement and local batch,
``validation-B.csv`` the iterations of a whole training with global batch B. Step times are on a grid of local
batches; values between are interpolated linearly, as in Pollux's own simulator. Only simulations use these
tables; the live platform measures each level.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from math import ceil
from pathlib import Path

import numpy as np

from simulation.workloads.errors import TraceError
from simulation.workloads.trace_file import read_table

GPU_TYPE = "T4"
GPUS_PER_SERVER = 4
GPU_COUNTS = (1, 2, 4, 8, 16, 32, 64)
# Largest local batch of applications that run out of memory within the grid.
LARGEST_LOCAL_BATCH = {"yolov3": 16}

# Samples of a whole training: epochs times size of the data set.
TRAINING_SAMPLES = {
    "bert": 2 * 88_641,
    "cifar10": 100 * 50_000,
    "deepspeech2": 80 * 7_134,
    "imagenet": 90 * 1_281_167,
    "ncf": 10 * 4_970_845,
    "yolov3": 50 * 16_551,
}


def pollux_points(folder: Path, application: str, global_batch_size: int) -> dict[int, float]:
    """Return iterations per second by GPU count, placed on as few servers as possible.

    A GPU count that does not divide the batch, or whose local batch was not measured, is left out. A local
    batch above the largest that fits runs in several steps that synchronise once.

    Raises TraceError if the tables are missing or unreadable.
    """
    grids = _step_times(folder / application)
    points: dict[int, float] = {}
    for gpus in GPU_COUNTS:
        grid = grids.get(gpus)
        if grid is None or global_batch_size % gpus:
            continue
        local_batches, step, synchronise = grid
        largest = LARGEST_LOCAL_BATCH.get(application, int(local_batches[-1]))
        local = global_batch_size // gpus
        rounds = ceil(local / largest)
        each = ceil(local / rounds)
        if not local_batches[0] <= each <= local_batches[-1]:
            continue
        step_seconds = float(np.interp(each, local_batches, step))
        compute_seconds = step_seconds - float(np.interp(each, local_batches, synchronise))
        points[gpus] = 1.0 / (step_seconds + (rounds - 1) * compute_seconds)
    return points


def training_iterations(
    folder: Path | None, application: str, global_batch_size: int
) -> tuple[float, bool] | None:
    """Return the iterations of a whole training, and whether they were measured; None for an unknown
    application.

    Measured: the last row of the validation table of that batch, or linearly between the next smaller and
    larger batch. Without tables: all samples once in batches of that size, which ignores that larger batches
    learn less from each sample, so long trainings come out too short.
    """
    if folder is not None and (folder / application).is_dir():
        measured = _validated(folder / application)
        if measured and min(measured) <= global_batch_size <= max(measured):
            batches = sorted(measured)
            return float(np.interp(global_batch_size, batches, [measured[batch] for batch in batches])), True
    samples = TRAINING_SAMPLES.get(application)
    return None if samples is None else (float(ceil(samples / global_batch_size)), False)


def validated_batches(folder: Path, application: str) -> dict[int, int]:
    """Return the global batches whose whole training was measured, with its iterations; empty for an unknown
    application."""
    return dict(_validated(folder / application)) if (folder / application).is_dir() else {}


@cache
def _step_times(folder: Path) -> dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return, by GPU count of consolidated placements: local batches ascending, seconds per step, seconds of
    it spent synchronising."""
    rows: dict[int, list[tuple[int, float, float]]] = defaultdict(list)
    needed = ("local_bsz", "step_time", "sync_time")
    for row in read_table(folder / "placements.csv").named(
        {name: (name,) for name in ("placement", *needed)}
    ):
        digits = row.text("placement")
        gpus = sum(int(digit) for digit in digits if digit.isdecimal())
        if len(digits) == ceil(gpus / GPUS_PER_SERVER):
            rows[gpus].append(
                (
                    row.whole("local_bsz", minimum=1),
                    row.number("step_time", above=0),
                    row.number("sync_time", minimum=0),
                )
            )
    for row in read_table(folder / "scalability.csv").named(
        {name: (name,) for name in ("num_nodes", "num_replicas", *needed)}
    ):
        gpus = row.whole("num_replicas", minimum=1)
        if gpus == GPUS_PER_SERVER * row.whole("num_nodes", minimum=1):
            rows[gpus].append(
                (
                    row.whole("local_bsz", minimum=1),
                    row.number("step_time", above=0),
                    row.number("sync_time", minimum=0),
                )
            )
    grids: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
    for gpus, measured in rows.items():
        batches, steps, syncs = (
            np.array(column, dtype=np.float64) for column in zip(*sorted(measured), strict=True)
        )
        grids[gpus] = (batches, steps, syncs)
    return grids


@cache
def _validated(folder: Path) -> dict[int, int]:
    """Return the iterations of the whole training by global batch."""
    measured: dict[int, int] = {}
    for path in folder.glob("validation-*.csv"):
        batch = path.stem.partition("-")[2]
        if not batch.isdecimal():
            raise TraceError("the name must end in the global batch: validation-BATCH.csv", path=path)
        rows = read_table(path).named({"iteration": ("iteration",)})
        measured[int(batch)] = rows[-1].whole("iteration", minimum=1)
    return measured
