"""Why a request has no outputs."""

from __future__ import annotations


class QueueFullError(Exception):
    """As many inputs wait as may."""


class NotServingError(Exception):
    """The worker ends. Another replica may answer."""


class BadInputError(Exception):
    """The function does not take an input."""


class PredictionError(Exception):
    """The function failed."""


class LateError(Exception):
    """There was no answer in time."""
