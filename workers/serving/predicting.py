"""The thread that calls the function, and the outcome of each request of a batch."""

from __future__ import annotations

import json
import logging
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from workers.runtime.failures import failure_of, first_line
from workers.serving.batching import Outcome, Request
from workers.serving.counting import Counts
from workers.serving.errors import BadInputError, LateError, NotServingError, PredictionError
from workers.serving.limits import ANSWER_BYTES

_log = logging.getLogger(__name__)

#: Returns one output for each input; may raise any exception of a person's code.
Predict = Callable[[list[Any]], Any]
#: Minimum time between two tracebacks of the function in the worker's log.
_LOGGING_SECONDS = 10.0


class Predictor:
    """Computes one batch at a time in its own thread."""

    def __init__(self, predict: Predict, counts: Counts, generation: int) -> None:
        self._predict = predict
        self._counts = counts
        self._generation = generation
        self._batches: queue.SimpleQueue[tuple[Sequence[Request], Callable[[list[Outcome]], None]]] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._work, name="predict", daemon=True)
        self._called_at: float | None = None
        self._logged_at = -_LOGGING_SECONDS

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def begin(self, batch: Sequence[Request], ended: Callable[[list[Outcome]], None]) -> None:
        """Compute a batch, then call `ended` in this thread."""
        self._batches.put((batch, ended))

    @property
    def seconds_in_call(self) -> float:
        """Seconds since the current call of the function began; 0 between calls."""
        called_at = self._called_at
        return 0.0 if called_at is None else time.monotonic() - called_at

    def where(self) -> str:
        """Return the current stack of the thread."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "" if frame is None else "".join(traceback.format_stack(frame))

    def _work(self) -> None:
        while True:
            batch, ended = self._batches.get()
            ended(self.outcomes(batch))

    def outcomes(self, batch: Sequence[Request]) -> list[Outcome]:
        """Return the outcome of each request.

        If a batch fails, its requests are tried one by one, so that a wrong input affects only its own
        request.
        """
        try:
            outputs = self._call([value for request in batch for value in request.inputs])
        except BaseException as error:  # noqa: BLE001 - a person's code, sys.exit() included
            if len(batch) > 1:
                return [self._outcome_alone(request) for request in batch]
            return [self._refusal(error)]
        found: list[Outcome] = []
        for request in batch:
            found.append(self._answer(outputs[: len(request.inputs)]))
            outputs = outputs[len(request.inputs) :]
        return found

    def _outcome_alone(self, request: Request) -> Outcome:
        if request.is_settled:
            return LateError("it was late already")
        return self.outcomes([request])[0]

    def _call(self, inputs: list[Any]) -> Sequence[Any]:
        began_at = self._called_at = time.monotonic()
        try:
            outputs = _plain(self._predict(inputs))
        finally:
            self._called_at = None
            self._counts.computed(time.monotonic() - began_at)
        if not isinstance(outputs, (list, tuple)):
            raise PredictionError(
                f"predict() returned {type(outputs).__name__}; it must return a tensor or a list with one "
                "output for each input"
            )
        if len(outputs) != len(inputs):
            raise PredictionError(f"predict() returned {len(outputs)} outputs for {len(inputs)} inputs")
        return outputs

    def _answer(self, outputs: Sequence[Any]) -> Outcome:
        try:
            answer = {"outputs": outputs, "generation": self._generation}
            content = json.dumps(answer, allow_nan=False, default=_as_json).encode()
        except Exception as error:  # noqa: BLE001 - the objects are a person's
            return PredictionError(f"predict() returned what JSON does not have: {first_line(error)}")
        if len(content) > ANSWER_BYTES:
            return PredictionError(f"the answer has {len(content)} bytes; the limit is {ANSWER_BYTES}")
        return content

    def _refusal(self, error: BaseException) -> Exception:
        """Return the outcome for an error: a ValueError means a wrong input, others a failed function."""
        if isinstance(error, (PredictionError, NotServingError)):
            return error
        if isinstance(error, ValueError):
            return BadInputError(first_line(error))
        failure = failure_of("predict()", error)
        if time.monotonic() >= self._logged_at + _LOGGING_SECONDS:
            self._logged_at = time.monotonic()
            _log.error("%s\n%s", failure.message, failure.traceback_text)
        return PredictionError(failure.message)


def _plain(outputs: Any) -> Any:
    """Return tensors and arrays as lists."""
    return outputs.tolist() if hasattr(outputs, "tolist") else outputs


def _as_json(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a value of type {type(value).__name__}")
