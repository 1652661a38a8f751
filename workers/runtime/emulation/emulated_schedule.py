"""An emulated device's schedule in an iteration: its passes, and concurrent encoding and decoding.

Threads of the host submit work, some of them late. Work is scheduled where it belongs in emulated time, so a
late thread does not lengthen the schedule.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class DeviceSchedule:
    """One iteration in emulated time, in seconds; it reads no clock.

    A pass runs layer by layer, without preemption of a layer. Codec operations run one after the other, in
    the order of their emulated submission times. A returned end time never changes: an operation submitted
    late may overlap with it, and later operations wait for both.

    Attributes:
        coded_until: end of all submitted codec operations.
    """

    def __init__(self, at: float) -> None:
        self.coded_until = at
        self.begin()

    def begin(self) -> None:
        """Begin an iteration: all earlier work is done, and no thread submits more of it."""
        self._coded_before = self.coded_until
        self._layers_began: list[float] = []
        self._layers_ended: list[float] = []
        self._asked_at: list[float] = []
        #: Earliest begin and duration of each codec operation, in the order of `_asked_at`.
        self._given: list[tuple[float, float]] = []
        #: Begin and duration of codec operations that will delay layers not done yet.
        self._owed: list[tuple[float, float]] = []

    def layer(self, began: float, seconds: float) -> tuple[float, float]:
        """Schedule a layer; return its end, and the seconds of codec operations by which it is delayed."""
        ended, taken = began + seconds, 0.0
        while self._owed and self._owed[0][0] < ended:
            _, coded = self._owed.pop(0)
            ended, taken = ended + coded, taken + coded
        self._layers_began.append(began)
        self._layers_ended.append(ended)
        return ended, taken

    def layer_end(self, at: float) -> float:
        """Return the end of the layer that runs at time `at`; `at` if none does."""
        place = bisect_left(self._layers_began, at) - 1
        return max(at, self._layers_ended[place]) if place >= 0 else at

    def code(self, seconds: float, asked_at: float, free_at: float) -> float:
        """Schedule a codec operation submitted at `asked_at`, from `free_at` at the earliest; return its
        begin."""
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
        """Note that a codec operation that begins at `began` delays layers not done then by `seconds`."""
        place = bisect_right([at for at, _ in self._owed], began)
        self._owed.insert(place, (began, seconds))
