"""What an emulated device takes to encode and decode gradients, beside its passes.

Codecs really run, on the host, and each ends no earlier than the declared device would have done it. What an
exchange waited for before it encodes, decodes or is sent is kept with it: threads of the host may be late.
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
    """An exchange's way in emulated time."""

    def __init__(self, clock: EmulatedClock, codecs: CodecTable) -> None:
        self._clock, self._codecs = clock, codecs
        self._at = clock.now()
        self._asked: Asked | None = None

    @property
    def at(self) -> float:
        """In emulated time."""
        return self._at

    def goes_on(self) -> None:
        """No earlier than this thread was through with what it did before."""
        self._at = max(self._at, self._clock.thread_at)
        self._clock.be_at(self._at)

    def coded(self, stage: Stage, codec: str, device: Device, elements: int, payloads: int = 1) -> None:
        """Takes the device's time."""
        profile = self._codecs.get((codec, device))
        if profile is None:
            return
        table = profile.seconds_to_encode if stage == "encode" else profile.seconds_to_decode
        self._at = self._clock.code(payloads * float(table([elements])[0]), self._at)

    def asked(self) -> None:
        """Its end will be known."""
        self._asked = self._clock.asked
        if self._asked is not None:
            self._asked.in_course = True

    def came(self) -> None:
        """Goes on when it ended, in emulated time."""
        if self._asked is not None and self._asked.ended_at is not None:
            self._at = max(self._at, self._asked.ended_at)
        self._clock.be_at(self._at)
