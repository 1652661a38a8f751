"""Stores losses and weights that are NaN or infinite, in a job's history and headline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from punctual.protocol.hyperparameters import NONFINITE_ITERATIONS_IN_A_ROW
from scheduling.choices import JobEventKind
from scheduling.models import Checkpoint, Generation, Job
from scheduling.selectors.jobs.nonfinite import describe_weights
from scheduling.services.rows.records import record

#: Limit for each job; further reports are taken to repeat earlier ones.
NOTES_OF_A_JOB = 20


def note_nonfinite(job: Job, generation: Generation, event: Mapping[str, Any]) -> None:
    """Store an event of rank 0. Ignore late ones of iterations that a later generation trained again."""
    if generation.is_repeated_from(event["iteration"]):
        return
    known = dict(job.nonfinite)
    if event["what"] == "loss_began":
        told = {**known, "since": event["since"]}
        text = (
            f"The loss is NaN or infinite since iteration {event['since']}. After "
            f"{NONFINITE_ITERATIONS_IN_A_ROW} such iterations in a row the job stops."
        )
        if job.hyperparameters.get("nonfinite") == "continue":
            text = f"The loss is NaN or infinite since iteration {event['since']}."
    elif event["what"] == "loss_ended":
        told = {name: value for name, value in known.items() if name != "since"}
        text = f"The loss is finite again at iteration {event['iteration']}."
    else:
        weights = {"tensors": event["tensors"], "of": event["of"], "names": event["names"]}
        told = {**known, "weights": weights} if event["what"] == "final_weights" else known
        text = f"Weights at iteration {event['iteration']}: {describe_weights(weights)}."
    if told != known:
        job.nonfinite = told
        job.save(update_fields=["nonfinite"])
    elif event["what"] != "weights":
        return  # another generation repeats what is known
    if job.events.filter(kind=JobEventKind.NONFINITE).count() < NOTES_OF_A_JOB:
        record(job, JobEventKind.NONFINITE, text, generation=generation.number)


def went_back(job: Job, iteration: int) -> None:
    """Forget nonfinite losses that began after the iteration from which the job trains again."""
    if job.nonfinite.get("since", 0) > iteration:
        job.nonfinite = {}
        job.save(update_fields=["nonfinite"])


def last_good_state(job: Job, failed_at: int) -> Checkpoint | None:
    """Return the newest state from before the losses that end the job, of which iteration `failed_at` is the
    last.
    """
    before = failed_at - NONFINITE_ITERATIONS_IN_A_ROW
    stored = job.checkpoints.filter(deleted_at__isnull=True, complete_at__isnull=False, iteration__lte=before)
    return stored.order_by("-iteration", "-generation").first()


def name_state(state: Checkpoint | None) -> str:
    """Return a sentence that names the state for users."""
    if state is None:
        return "No state from before was stored."
    return f"The last state from before is that of iteration {state.iteration}; it is kept for a week."
