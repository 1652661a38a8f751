"""Checks of planners' numeric arguments. Each error names the argument, its value and the limit."""

from __future__ import annotations

from math import isfinite


def check_positive(name: str, value: float) -> None:
    """Raise ValueError unless the value is finite and above 0."""
    if not (isfinite(value) and value > 0):
        raise ValueError(f"{name} is {value}; it must be finite and above 0")


def check_not_negative(name: str, value: float) -> None:
    """Raise ValueError unless the value is finite and at least 0."""
    if not (isfinite(value) and value >= 0):
        raise ValueError(f"{name} is {value}; it must be finite and at least 0")


def check_share(name: str, value: float) -> None:
    """Raise ValueError unless the value is between 0 and 1."""
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} is {value}; it must be between 0 and 1")


def check_at_least(name: str, value: int, least: int = 1) -> None:
    """Raise ValueError if the value is below `least`."""
    if value < least:
        raise ValueError(f"{name} is {value}; it must be at least {least}")


def check_at_most(name: str, value: int, most: int) -> None:
    """Raise ValueError if the value is above `most`."""
    if value > most:
        raise ValueError(f"{name} is {value}; it must be at most {most}")
