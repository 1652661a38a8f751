"""What an emulated device does when in an iteration: its passes, and what it encodes and decodes beside them.

Threads of the host say what is to be done, and some say it late. What they ask for is put where it belongs in
emulated time, so that a late thread makes nothing longer.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class DeviceSchedule:
    """One iteration in emulated time, in seconds. It knows no clock.

    A pass is done layer by layer, and a layer is not left before it is done. What is encoded and decoded goes
    one after the other, in the order in which it was asked for in emulated time. Whoever was told of an end
    keeps it: what is asked for late may overlap with that, and what follows waits for both.

    Attributes:
        coded_until: when all is encoded and decoded that the device was given.
    """

    def __init__(self, at: float) -> None:
        self.coded_until = at
        self.begin()

    def begin(self) -> None:
        """An iteration begins: what was before it is done, and no thread will ask for more of it."""
        self._coded_before = self.coded_until
        self._layers_began: list[float] = []
        self._layers_ended: list[float] = []
        self._asked_at: list[float] = []
        #: Of each, in that order: from when on it may begin, and what it takes.
        self._given: list[tuple[float, float]] = []
        #: When what takes time of layers that are not done yet begins, and how much.
        self._owed: list[tuple[float, float]] = []

    def layer(self, began: float, seconds: float) -> tuple[float, float]:
        """A layer is computed: returns when it is done, and what was coded before that and takes its time."""
        ended, taken = began + seconds, 0.0
        while self._owed and self._owed[0][0] < ended:
            _, coded = self._owed.pop(0)
            ended, taken = ended + coded, taken + coded
        self._layers_began.append(began)
        self._layers_ended.append(ended)
        return ended, taken

    def layer_end(self, at: float) -> float:
        """When the layer is done that is computed at a time; that time where none is, or none yet."""
        place = bisect_left(self._layers_began, at) - 1
        return max(at, self._layers_ended[place]) if place >= 0 else at

    def code(self, seconds: float, asked_at: float, free_at: float) -> float:
        """What was asked for at `asked_at` is encoded or decoded, from `free_at` on at the earliest: returns
        when that begins."""
        place = bisect_right(self._asked_at, asked_at)
        self._asked_at.insert(place, asked_at)
        self._given.insert(place, (free_at, seconds))
        if place == len(self._given) - 1:
            begun = max(free_at, self.coded_until)
            self.coded_until = begun + seconds
            return begun
        begun, until = free_at, self._coded_before
        for number, (free, takes) in enumerate(self._given):
            if number == place:
                begun = max(free, until)
            until = max(free, until) + takes
        self.coded_until = until
        return begun

    def owe(self, began: float, seconds: float) -> None:
        """What is coded then takes that much time of layers which are not done then."""
        place = bisect_right([at for at, _ in self._owed], began)
        self._owed.insert(place, (began, seconds))
