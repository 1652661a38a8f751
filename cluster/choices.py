"""States of what exists, with the colours that pages and badges use."""

from __future__ import annotations

from django.db import models


class ServerState(models.TextChoices):
    """How far a server can be trusted: heard of lately, silent, or given up (its work was taken away)."""

    UP = "up", "Up"
    SUSPECT = "suspect", "Suspect"
    DOWN = "down", "Down"
    REMOVED = "removed", "Removed"


class DrainState(models.TextChoices):
    """Whether an operator is emptying the server."""

    NONE = "none", "None"
    DRAINING = "draining", "Draining"
    DRAINED = "drained", "Drained"


SERVER_COLOURS = {
    ServerState.UP: "#2e7d32",
    ServerState.SUSPECT: "#ef8e19",
    ServerState.DOWN: "#c62828",
    ServerState.REMOVED: "#757575",
}
