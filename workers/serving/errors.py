"""Why a request has no outputs."""

from __future__ import annotations


class QueueFullError(Exception):
    """The queue has reached its limit of inputs."""


class NotServingError(Exception):
    """The worker is ending. Another replica may answer."""


class BadInputError(Exception):
    """The function refuses an input."""


class PredictionError(Exception):
    """The function failed."""


class LateError(Exception):
    """There was no answer in time."""
