"""The goal that the control plane sets for this worker; it only rises."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

GOAL_ORDER = {"prepare": 0, "train": 1, "serve": 1, "hand_over": 2, "suspend": 2, "drain": 2, "stop": 3}


class Goals:
    """The highest goal received. Messages may be lost, doubled or late; a lower goal changes nothing."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._goal = "prepare"
        self._start: Mapping[str, Any] | None = None
        self._train_heard: float | None = None

    def update(self, goal: str, start: Mapping[str, Any] | None) -> None:
        """Store a goal and where the state comes from.

        Raises:
            ValueError: there is no such goal.
        """
        if goal not in GOAL_ORDER:
            raise ValueError(f"unknown goal {goal!r}")
        with self._changed:
            if GOAL_ORDER[goal] > GOAL_ORDER[self._goal]:
                self._goal = goal
            if start is not None:
                self._start = start
            if self._train_heard is None and GOAL_ORDER[self._goal] >= GOAL_ORDER["train"]:
                self._train_heard = time.monotonic()
            self._changed.notify_all()

    @property
    def goal(self) -> str:
        """The highest goal received."""
        return self._goal

    @property
    def start(self) -> Mapping[str, Any] | None:
        """Where the state comes from, as last received."""
        return self._start

    @property
    def seconds_since_train(self) -> float:
        """Seconds since the goal `train` was received."""
        return 0.0 if self._train_heard is None else time.monotonic() - self._train_heard

    def wait_for_train(self) -> None:
        """Sleep until the goal is `train` or a higher one."""
        with self._changed:
            self._changed.wait_for(lambda: self._goal != "prepare")

    def wait_for_start(self) -> Mapping[str, Any] | None:
        """Sleep until the source of the state is known and return it; None if the goal is past `train`."""
        with self._changed:
            self._changed.wait_for(lambda: self._start is not None or self._goal != "train")
            return self._start if self._goal == "train" else None

    def wait_for_change(self, seconds: float) -> None:
        """Sleep for `seconds`, or until a message comes."""
        with self._changed:
            self._changed.wait(seconds)
