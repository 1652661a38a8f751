"""States of a simulated run, with the colours that pages use."""

from __future__ import annotations

from django.db import models


class StudySource(models.TextChoices):
    """Where the jobs of a study come from: a trace, or the live cluster as it was when the study was made."""

    TRACE = "trace", "Trace"
    LIVE = "live", "Live cluster"


class TraceKind(models.TextChoices):
    """Where a trace comes from: drawn by seed, published by somebody, or another file in the traces folder."""

    SYNTHETIC = "synthetic", "Synthetic"
    PUBLIC = "public", "Public traces"
    FILE = "file", "Other files in the traces folder"


class RunState(models.TextChoices):
    QUEUED = "queued", "Queued"
    RUNNING = "running", "Running"
    DONE = "done", "Done"
    CANCELLED = "cancelled", "Cancelled"
    FAILED = "failed", "Failed"


FINAL_STATES = (RunState.DONE, RunState.CANCELLED, RunState.FAILED)

RUN_COLOURS = {
    RunState.QUEUED: "#78909c",
    RunState.RUNNING: "#2e7d32",
    RunState.DONE: "#00695c",
    RunState.CANCELLED: "#757575",
    RunState.FAILED: "#c62828",
}
