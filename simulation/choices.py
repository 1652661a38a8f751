"""States of a simulated run, with the colours that pages use."""

from __future__ import annotations

from django.db import models

from cluster.choices import WorkState


class StudySource(models.TextChoices):
    """Where the jobs of a study come from: a trace, or the live cluster as it was when the study was made."""

    TRACE = "trace", "Trace"
    LIVE = "live", "Live cluster"


class TraceKind(models.TextChoices):
    """Origin of a trace: drawn by seed, published, or another file in the traces folder."""

    SYNTHETIC = "synthetic", "Synthetic"
    PUBLIC = "public", "Public traces"
    FILE = "file", "Other files in the traces folder"


#: Usage of a study's inference cluster: as measured on the live one.
MEASURED_USAGE = "measured"

RUN_COLOURS = {
    WorkState.QUEUED: "#78909c",
    WorkState.RUNNING: "#2e7d32",
    WorkState.DONE: "#00695c",
    WorkState.CANCELLED: "#757575",
    WorkState.FAILED: "#c62828",
}
