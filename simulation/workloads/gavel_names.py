"""Names of work in Gavel and Shockwave, and their steps as iterations of a fixed global batch.

A job type is a model and the batch *of one GPU*: ``ResNet-18 (batch size 16)``. One step is one such batch on
one GPU, and the steps of all GPUs are counted together (two GPUs do nearly twice the steps of one): the batch
of an iteration grows with the GPUs, that is weak scaling. ElasticFlow keeps the global batch fixed. So that a
GPU count changes speed alone, an iteration here is ``STEPS_PER_ITERATION`` steps, the largest GPU count that
Gavel measured: its global batch is that multiple of the named one, split over the GPUs; fewer GPUs process
several batches in turn. Steps and steps per second are divided by the same number, so durations stay as
measured.
"""

from __future__ import annotations

import re

from simulation.workloads.trace_file import TraceRow

STEPS_PER_ITERATION = 8

_JOB_TYPE = re.compile(r"(?P<model>.+?)(?: \(batch size (?P<batch>[1-9]\d*)\))?")


def split_job_type(row: TraceRow, column: str) -> tuple[str, int]:
    """Return model and batch of one GPU; a type without a batch (A3C, CycleGAN) has 1.

    Raises TraceError if the text is not a job type.
    """
    text = row.text(column)
    match = _JOB_TYPE.fullmatch(text)
    if match is None or "(" in match["model"]:
        raise row.error(column, f"'{text}' is no job type; 'MODEL (batch size N)' is expected")
    return match["model"], int(match["batch"] or 1)
