"""Espresso with one dimension of its choice removed, for the ablation (Espresso 4.6.5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from communication.espresso.baselines import FP32, SCHEMES
from communication.espresso.options import Option, devices_of
from communication.espresso.question import Question
from communication.espresso.selection import Selection, select
from communication.profiles.codec import Device


@dataclass(frozen=True, slots=True)
class Variant:
    """A restriction of the options; everything else is chosen as usual."""

    name: str
    allows: Callable[[Option], bool]

    def select(self, question: Question) -> Selection:
        """Return the selection under the restriction; its columns are those of `restricted`. Raises
        ValueError if no option is left."""
        return select(self.restricted(question))

    def restricted(self, question: Question) -> Question:
        """Return the question with the options that the variant allows."""
        return question.among(self.allows)


def _scheme(make: Callable[[Device], Option]) -> Callable[[Option], bool]:
    """Allow one compression scheme, or none."""
    allowed = {FP32, *(make(device) for device in Device)}
    return lambda option: option in allowed


VARIANTS = (
    Variant("All compression", lambda option: bool(devices_of(option))),
    Variant("GPU only", lambda option: Device.CPU not in devices_of(option)),
    Variant("CPU only", lambda option: Device.GPU not in devices_of(option)),
    *(Variant(name, _scheme(make)) for name, make in SCHEMES.items()),
)
