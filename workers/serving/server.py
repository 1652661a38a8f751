"""uvicorn in its own thread, with the batcher in its event loop, and the function's thread."""

from __future__ import annotations

import faulthandler
import socket
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

import uvicorn
from uvicorn.loops.auto import auto_loop_factory

from workers.serving.application import ServingApplication
from workers.serving.batching import Batcher, Outcome, Request
from workers.serving.connections import BoundedProtocol
from workers.serving.counting import Counts
from workers.serving.errors import LateError
from workers.serving.limits import ServingLimits
from workers.serving.predicting import Predict, Predictor

_LOOK_SECONDS = 0.25
#: The process ends if its event loop is blocked for this time beyond the maximum time of a call.
_STANDSTILL_SECONDS = 10.0
#: Extra time for callers that read their last answers slowly.
_READING_SECONDS = 2.0


class ServingProtocol(BoundedProtocol):
    """The protocol with a higher limit, as a deployment's clients open many connections from one address."""

    receiving_from_a_peer = 1024


class StuckError(Exception):
    """A call of the function did not return in time. `where`: its current stack."""

    def __init__(self, message: str, where: str) -> None:
        super().__init__(message)
        self.where = where


class ServingServer:
    """Serves requests from `start` to `stop`."""

    def __init__(
        self,
        listener: socket.socket,
        predict: Predict,
        limits: ServingLimits,
        generation: int,
        token_digests: Callable[[], Collection[str]],
        *,
        ends_process: bool,
    ) -> None:
        """Prepare the server.

        Args:
            ends_process: end this process if a call of the function blocks all threads.
        """
        self.counts = Counts()
        self.is_draining = False
        self._limits = limits
        self._listener = listener
        self._ends_process = ends_process
        self._predictor = Predictor(predict, self.counts, generation)
        self._loop = auto_loop_factory()()
        self._batcher = Batcher(self._begin, limits, self._loop)
        application = ServingApplication(
            self._batcher, self.counts, generation, token_digests, lambda: self.is_draining
        )
        self._server = uvicorn.Server(
            uvicorn.Config(
                application,
                interface="asgi3",
                http=ServingProtocol,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="error",  # clients' mistakes do not belong in the function's log
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=60,
                timeout_graceful_shutdown=int(limits.answer_seconds + _READING_SECONDS),
            )
        )
        self._stuck: StuckError | None = None
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return self._batcher.waiting

    def start(self) -> None:
        """Begin to answer requests."""
        self._predictor.start()
        self._thread.start()

    def check(self) -> None:
        """Return while requests are answered.

        Raises:
            StuckError: a call of the function does not return.
            RuntimeError: the event loop has ended.
        """
        if self._stuck is not None:
            raise self._stuck
        if not self._thread.is_alive():
            raise RuntimeError("the HTTP server ended by itself")

    def stop(self) -> None:
        """Stop listening, answer waiting requests, and end the event loop. Return when that is done."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        self._loop.call_soon(self._look)
        self._loop.run_until_complete(self._server.serve(sockets=[self._listener]))
        faulthandler.cancel_dump_traceback_later()

    def _end(self) -> None:
        self._batcher.close()
        self._server.should_exit = True

    def _begin(self, batch: Sequence[Request]) -> None:
        def ended(outcomes: list[Outcome]) -> None:
            with suppress(RuntimeError):  # the loop may have ended before the function's last call
                self._loop.call_soon_threadsafe(self._batcher.ended, outcomes)

        self._predictor.begin(batch, ended)

    def _look(self) -> None:
        """Check periodically for late requests and a stuck function."""
        self._loop.call_later(_LOOK_SECONDS, self._look)
        if self._ends_process:
            # faulthandler's thread works without the interpreter's lock, which the function's code may hold
            # for ever. It logs the stack.
            patience_seconds = self._limits.predict_seconds + _STANDSTILL_SECONDS
            faulthandler.dump_traceback_later(patience_seconds, exit=True)
        self._batcher.expire()
        if self._stuck is None and self._predictor.seconds_in_call > self._limits.predict_seconds:
            message = f"predict() did not return within {self._limits.predict_seconds:g} s"
            self._stuck = StuckError(message, self._predictor.where())
            self._batcher.give_up(LateError(message))


def listen(address: str, port: int) -> socket.socket:
    """Return a listening socket. Raise OSError if the port is taken."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family, backlog=2048)
