"""Charges transfers of states to the emulated links: from the device, to disk, to other workers.

The bytes are really copied, written and sent; this module waits until the emulated links have carried them
too. On real devices it does nothing.
"""

from __future__ import annotations

import time

from emulated_links.rates import DISK, HOST_TO_DEVICE, NETWORK, NETWORK_IN, SPINE, STATE, WITHIN_SERVER
from workers.runtime.emulation.emulated_network import Emulation

#: A worker's place: numbers of its server and rack, eight bytes each.
PLACE_BYTES = 16
_NOWHERE = bytes(PLACE_BYTES)


class StateMoves:
    """The links over which a worker's state moves; none on a real device.

    Every method takes the number of bytes and the begin of a move, and returns its end (monotonic seconds).
    """

    def __init__(self, emulation: Emulation | None = None, place: bytes = _NOWHERE) -> None:
        self.place = place
        self._emulation = emulation

    def copied(self, size: int, started: float) -> float:
        """Wait for a copy between host and device."""
        return self._carry((HOST_TO_DEVICE,), size, started)

    def stored(self, size: int, started: float) -> float:
        """Wait for a transfer to or from the disk."""
        return self._carry((DISK,), size, started)

    def sent(self, size: int, started: float, receiver: bytes) -> float:
        """Wait for a transfer to a worker at place `receiver`."""
        if receiver[:8] == self.place[:8]:
            return self._carry((WITHIN_SERVER,), size, started)
        if receiver[8:] == self.place[8:]:
            return self._carry((NETWORK,), size, started)
        return self._carry((NETWORK, SPINE), size, started)

    def received(self, size: int, started: float, sender: bytes) -> float:
        """Wait for a transfer from a worker at place `sender`, whose server's links are already charged."""
        if sender[:8] == self.place[:8]:
            return started
        return self._carry((NETWORK_IN,), size, started)

    def _carry(self, path: tuple[str, ...], size: int, started: float) -> float:
        if self._emulation is None:
            return time.monotonic()
        return self._emulation.client.carry(path, STATE, size, started)
