"""Why a forecaster cannot be used."""

from __future__ import annotations


class ForecasterError(ValueError):
    """A forecaster cannot be had, fitted, read or asked. Its text is one sentence."""


class TooFewSamples(ForecasterError):
    """There are not enough samples to fit a model yet: the last sample is the forecast until there are."""
