"""Requests to the control plane, made in threads; results are handled in the main loop.

Common outcomes are handled here once: an outage, a fenced server, a revoked credential.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from workers.agent.machine import clock
from workers.agent.machine.main_loop import MainLoop
from workers.agent.talking.control_plane import CredentialRevoked, Fenced, RequestRefused, Unreachable

logger = logging.getLogger(__name__)


class Calls:
    """Sends requests. ``fenced`` and ``revoked`` are called with the reason, in the main loop."""

    def __init__(self, loop: MainLoop, fenced: Callable[[str], None], revoked: Callable[[str], None]) -> None:
        self._loop = loop
        self._fenced = fenced
        self._revoked = revoked
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="control-plane")
        self._outage_since: float | None = None

    def ask(
        self,
        call: Callable[[], dict[str, Any]],
        done: Callable[[dict[str, Any]], None],
        failed: Callable[[], None],
        refused: Callable[[RequestRefused], None] | None = None,
    ) -> None:
        """Send a request in a thread. ``done`` receives the answer; ``failed`` is called on any other
        outcome, and additionally ``refused`` if the control plane refused it."""

        def run() -> None:
            try:
                answer = call()
            except Unreachable as error:
                reason = str(error)
                self._loop.post(lambda: self._note_outage(reason))
                self._loop.post(failed)
            except Fenced as error:
                reason = str(error)
                self._loop.post(failed)
                self._loop.post(lambda: self._fenced(reason))
            except CredentialRevoked as error:
                reason = str(error)
                self._loop.post(failed)
                self._loop.post(lambda: self._revoked(reason))
            except RequestRefused as error:
                refusal = error
                self._loop.post(failed)
                self._loop.post(
                    lambda: refused(refusal) if refused else logger.error("control plane: %s", refusal)
                )
            except (
                Exception
            ):  # a fault of the agent itself: it must be logged, and must not stop the reports for ever
                logger.exception("a call to the control plane failed")
                self._loop.post(failed)
            else:
                self._loop.post(lambda: done(answer))

        self._threads.submit(run)

    def answered(self) -> None:
        """Record that the control plane has answered, which ends an outage."""
        if self._outage_since is not None:
            seconds = clock.boot_time_seconds() - self._outage_since
            logger.info("the control plane answers again after %.1f s", seconds)
            self._outage_since = None

    def close(self) -> None:
        """Send no more requests."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _note_outage(self, reason: str) -> None:
        """Log the beginning of an outage once, not at every attempt."""
        if self._outage_since is None:
            self._outage_since = clock.boot_time_seconds()
            logger.warning("the control plane does not answer: %s", reason)
