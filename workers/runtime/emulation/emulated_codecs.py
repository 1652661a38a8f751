"""Emulated time of encoding and decoding gradients, beside the device's passes.

Codecs really run on the host, and each ends no earlier than on the declared device. Each exchange has its own
emulated time, so that late threads of the host do not delay it.
"""

from __future__ import annotations

from collections.abc import Mapping

from communication.hooks.device_time import Course
from communication.hooks.measures import Stage
from communication.profiles.codec import CodecProfile, Device
from workers.runtime.emulation.emulated_time import Asked, EmulatedClock

#: By name and device.
CodecTable = Mapping[tuple[str, Device], CodecProfile]


class EmulatedCourse(Course):
    """The progress of an exchange in emulated time."""

    def __init__(self, clock: EmulatedClock, codecs: CodecTable) -> None:
        self._clock, self._codecs = clock, codecs
        self._at = clock.now()
        self._asked: Asked | None = None

    @property
    def at(self) -> float:
        """The exchange's emulated time."""
        return self._at

    def goes_on(self) -> None:
        """Continue no earlier than the end of this thread's earlier work."""
        self._at = max(self._at, self._clock.thread_at)
        self._clock.be_at(self._at)

    def coded(self, stage: Stage, codec: str, device: Device, elements: int, payloads: int = 1) -> None:
        """Take the device's time for encoding or decoding."""
        profile = self._codecs.get((codec, device))
        if profile is None:
            return
        table = profile.seconds_to_encode if stage == "encode" else profile.seconds_to_decode
        self._at = self._clock.code(payloads * float(table([elements])[0]), self._at)

    def asked(self) -> None:
        """Remember the collective that this thread has just started."""
        self._asked = self._clock.asked
        if self._asked is not None:
            self._asked.in_course = True

    def came(self) -> None:
        """Continue at the emulated end of the remembered collective."""
        if self._asked is not None and self._asked.ended_at is not None:
            self._at = max(self._at, self._asked.ended_at)
        self._clock.be_at(self._at)
