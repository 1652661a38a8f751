"""Accelerators that slots emulate: one kind for all agents, or several kinds assigned to agents in turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from launch.errors import LaunchError


@dataclass(frozen=True)
class EmulatedKind:
    """An accelerator that slots emulate."""

    name: str
    #: Speed relative to the platform's device model.
    speed: float = 1.0

    def device_model(self, model: Mapping[str, float]) -> dict[str, float]:
        """Return ``model``, times in seconds, for this accelerator."""
        return {name: seconds / self.speed for name, seconds in model.items()}


def emulated_kinds(text: str) -> tuple[EmulatedKind, ...]:
    """Parse ``NAME[:SPEED][,NAME[:SPEED]...]``, such as ``a100,t4:0.4``.

    Raises:
        LaunchError: a name is missing or there twice, or a speed is not from 0.01 to 100.
    """
    kinds = tuple(_kind(each.strip(), text) for each in text.split(","))
    if len({kind.name for kind in kinds}) < len(kinds):
        raise LaunchError(f"PUNCTUAL_EMULATE names a kind twice: {text!r}")
    return kinds


def _kind(each: str, text: str) -> EmulatedKind:
    name, colon, speed = each.partition(":")
    if not name.strip():
        raise LaunchError(f"PUNCTUAL_EMULATE lacks the name of a kind: {text!r}; such as a100,t4:0.4")
    try:
        factor = float(speed) if colon else 1.0
    except ValueError:
        factor = 0.0
    if not 0.01 <= factor <= 100.0:
        raise LaunchError(f"PUNCTUAL_EMULATE: a speed is a number from 0.01 to 100, not {speed!r}")
    return EmulatedKind(name.strip(), factor)
