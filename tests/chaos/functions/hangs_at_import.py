"""A function whose import waits for ever."""

from __future__ import annotations

import time
from typing import Any

from punctual import TrainingFunction

while time:
    time.sleep(3600)


class Never(TrainingFunction):
    """The class that the platform reads from the source; it is never instantiated."""

    def init_model(self) -> Any:
        raise NotImplementedError

    def init_dataset(self) -> Any:
        raise NotImplementedError

    def init_optimizer(self, model: Any) -> Any:
        raise NotImplementedError

    def train(self, batch: Any, model: Any) -> Any:
        raise NotImplementedError
