"""Holding an answer until the verdict (`?wait=SECONDS`), for a few requests at a time."""

from __future__ import annotations

import threading

from rest_framework.exceptions import ValidationError
from rest_framework.request import Request

from scheduling.services.requests.jobs import wait_for_verdict

LONGEST_SECONDS = 30.0
#: More would take threads from requests that can be answered at once.
WAITING_REQUESTS = 2
_places = threading.BoundedSemaphore(WAITING_REQUESTS)


def wait_seconds(request: Request) -> float:
    """Seconds that the caller waits; 0 without ``wait``.

    Raises:
        ValidationError: not a number from 0 to 30.
    """
    text = request.query_params.get("wait", "0")
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= LONGEST_SECONDS:
        raise ValidationError({"wait": [f"Must be seconds from 0 to {LONGEST_SECONDS:g}."]})
    return seconds


def hold_until_verdict(job_id: str, seconds: float) -> bool:
    """Wait for the verdict, if one of this process's places is free; returns whether it waited."""
    if seconds <= 0 or not _places.acquire(blocking=False):
        return False
    try:
        wait_for_verdict(job_id, seconds)
    finally:
        _places.release()
    return True
