"""One sentence on NaN or infinite values of a job's training, shown at the top of its page and by the
command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from punctual.names import shown
from scheduling.models import Job


def warning_of(job: Job) -> str:
    """Return what is or will be wrong with the result, or an empty string."""
    weights = job.nonfinite.get("weights")
    if weights:
        return f"The final weights are useless: {describe_weights(weights)}."
    since = job.nonfinite.get("since")
    return "" if since is None else f"The loss is NaN or infinite since iteration {since}."


def describe_weights(weights: Mapping[str, Any]) -> str:
    """Return which tensors are not finite, as the middle of a sentence."""
    names = ", ".join(shown(name) for name in weights["names"])
    more = ", …" if weights["tensors"] > len(weights["names"]) else ""
    return f"{weights['tensors']} of {weights['of']} tensors hold NaN or infinite values ({names}{more})"
