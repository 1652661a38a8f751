"""A state on the move takes the time of the emulated links on its way: from the device, to disk, to others.

The bytes are really copied, written and sent; this waits until the links have carried them too. On real
devices it does nothing.
"""

from __future__ import annotations

import time

from workers.links.rates import DISK, HOST_TO_DEVICE, NETWORK, NETWORK_IN, SPINE, STATE, WITHIN_SERVER
from workers.runtime.emulation.emulated_network import Emulation

#: Server and rack of a worker, as numbers that tell them apart: eight bytes each.
PLACE_BYTES = 16
_NOWHERE = bytes(PLACE_BYTES)


class StateMoves:
    """The links that a worker's state goes over; none on a real device.

    Every method takes how many bytes were moved and when that began, and returns when it ended.
    """

    def __init__(self, emulation: Emulation | None = None, place: bytes = _NOWHERE) -> None:
        self.place = place
        self._emulation = emulation

    def copied(self, size: int, started: float) -> float:
        """Between host and device."""
        return self._carry((HOST_TO_DEVICE,), size, started)

    def stored(self, size: int, started: float) -> float:
        """To the disk or from it."""
        return self._carry((DISK,), size, started)

    def sent(self, size: int, started: float, receiver: bytes) -> float:
        """To a worker at another place."""
        if receiver[:8] == self.place[:8]:
            return self._carry((WITHIN_SERVER,), size, started)
        if receiver[8:] == self.place[8:]:
            return self._carry((NETWORK,), size, started)
        return self._carry((NETWORK, SPINE), size, started)

    def received(self, size: int, started: float, sender: bytes) -> float:
        """From a worker at another place, whose server's links have carried it already."""
        if sender[:8] == self.place[:8]:
            return started
        return self._carry((NETWORK_IN,), size, started)

    def _carry(self, path: tuple[str, ...], size: int, started: float) -> float:
        if self._emulation is None:
            return time.monotonic()
        return self._emulation.client.carry(path, STATE, size, started)
