"""States of servers and of work, with the colours that pages and badges use."""

from __future__ import annotations

from django.db import models


class NewcomersRule(models.TextChoices):
    """Whether every newcomer that fits gets a promise, or room is kept for jobs that need little."""

    OPEN = "open", "Open"
    PRUDENT = "prudent", "Prudent"


class ServerState(models.TextChoices):
    """Trust in a server: recently heard from, silent, or given up (its work was taken away)."""

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


class Whitelist(models.TextChoices):
    """The scheduler that may use a server: always exactly one of the two (Lyra section 3.3)."""

    TRAINING = "training", "Training"
    INFERENCE = "inference", "Inference"


class LendingState(models.TextChoices):
    """A server's state between the two clusters (Lyra section 3.3). Dedicated training servers stay
    in `training`."""

    TRAINING = "training", "Training"
    INFERENCE = "inference", "Inference"
    ON_LOAN = "on_loan", "On loan"
    RECLAIMING = "reclaiming", "Being returned"


LENDING_TRANSITIONS: dict[LendingState, tuple[LendingState, ...]] = {
    LendingState.TRAINING: (),
    LendingState.INFERENCE: (LendingState.ON_LOAN,),
    LendingState.ON_LOAN: (LendingState.RECLAIMING,),
    LendingState.RECLAIMING: (LendingState.INFERENCE,),
}

#: A server being returned stays on the training whitelist until nothing runs on it.
WHITELIST_OF: dict[LendingState, Whitelist] = {
    LendingState.TRAINING: Whitelist.TRAINING,
    LendingState.INFERENCE: Whitelist.INFERENCE,
    LendingState.ON_LOAN: Whitelist.TRAINING,
    LendingState.RECLAIMING: Whitelist.TRAINING,
}

LENDING_COLOURS = {
    LendingState.TRAINING: "#1e88e5",
    LendingState.INFERENCE: "#8d6e63",
    LendingState.ON_LOAN: "#2e7d32",
    LendingState.RECLAIMING: "#ef8e19",
}


class WorkState(models.TextChoices):
    """State of work that is queued as a row for a worker: a training of a forecaster, a simulated run."""

    QUEUED = "queued", "Queued"
    RUNNING = "running", "Running"
    DONE = "done", "Done"
    CANCELLED = "cancelled", "Cancelled"
    FAILED = "failed", "Failed"


FINAL_WORK_STATES = (WorkState.DONE, WorkState.CANCELLED, WorkState.FAILED)
