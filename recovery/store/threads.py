"""The store's own thread, which owns all that is held, and those that wait for a network."""

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
    """Threads that wait, and what they have done in the store's own."""

    def __init__(self, later: Callable[[Callable[[], None]], None]) -> None:
        """`later` runs something in the store's own thread."""
        self.later = later

    def start(
        self,
        work: Callable[[], None],
        then: Callable[[str | None], None],
        finally_: Callable[[], None] = lambda: None,
    ) -> None:
        """Do something that waits, then go on in the store's own thread with what went wrong, or None.

        Whatever happens it goes on: somebody waits for it, and others for them."""

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
        except RuntimeError as error:  # there are too many threads on this server
            finally_()
            problem = str(error)
            self.later(lambda: then(problem))

    def ask_own(self, work: Callable[[], Found]) -> Found:
        """From another thread: have something done by the store's own. Raises what that raises."""
        answer: Future[Found] = Future()

        def run() -> None:
            if not answer.set_running_or_notify_cancel():
                return
            try:
                answer.set_result(work())
            except _EXPECTED as error:
                answer.set_exception(error)  # raised where it was asked for
            except Exception as error:
                logger.exception("what a peer asked for broke off")
                answer.set_exception(error)

        self.later(run)
        try:
            return answer.result(_OWN_THREAD_SECONDS)
        finally:
            answer.cancel()
