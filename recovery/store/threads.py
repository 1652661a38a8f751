"""The store's own thread, which owns the contents, and threads that wait for the network."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from recovery.store import wire
from recovery.store.holdings import RefusedError

logger = logging.getLogger(__name__)

_OWN_THREAD_SECONDS = 10.0
_EXPECTED = (OSError, ValueError, RefusedError, wire.WireError)

Found = TypeVar("Found")


class Threads:
    """Starts threads that wait, and runs their work on the contents in the store's own thread."""

    def __init__(self, later: Callable[[Callable[[], None]], None]) -> None:
        """Args: later: runs something in the store's own thread."""
        self.later = later

    def start(
        self,
        work: Callable[[], None],
        then: Callable[[str | None], None],
        finally_: Callable[[], None] = lambda: None,
    ) -> None:
        """Run blocking work in a thread, then `then` in the store's own with the error text, or None.

        `then` is always called, because others wait for it."""

        def run() -> None:
            problem: str | None = "it broke off"
            try:
                work()
                problem = None
            except _EXPECTED as error:
                problem = str(error) or type(error).__name__
            except Exception as error:
                logger.exception("what was to be done with a peer broke off")
                problem = str(error) or type(error).__name__
            finally:
                self.later(lambda: then(problem))
                finally_()

        try:
            threading.Thread(target=run, name="peer", daemon=True).start()
        except RuntimeError as error:  # too many threads on this server
            finally_()
            problem = str(error)
            self.later(lambda: then(problem))

    def ask_own(self, work: Callable[[], Found]) -> Found:
        """Run `work` in the store's own thread and return its result. Raises what it raises."""
        answer: Future[Found] = Future()

        def run() -> None:
            if not answer.set_running_or_notify_cancel():
                return
            try:
                answer.set_result(work())
            except _EXPECTED as error:
                answer.set_exception(error)  # raised in the calling thread
            except Exception as error:
                logger.exception("what a peer asked for broke off")
                answer.set_exception(error)

        self.later(run)
        try:
            return answer.result(_OWN_THREAD_SECONDS)
        finally:
            answer.cancel()
