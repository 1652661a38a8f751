"""Errors of forecasters."""

from __future__ import annotations


class ForecasterError(ValueError):
    """A forecaster cannot be loaded, fitted, read or used. The message is one sentence."""


class TooFewSamples(ForecasterError):
    """There are too few samples to fit a model. Until there are enough, the last sample is the forecast."""
