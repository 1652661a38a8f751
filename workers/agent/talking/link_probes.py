"""Measurement of links to other servers on the control plane's request (docs/protocols.md 2.9).

The request names the other server, the role (call or answer) and a secret. The agent calls or answers in
separate threads. Reports repeat the result until the control plane acknowledges it.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from emulated_links.client import LinkClient
from emulated_links.rates import NETWORK, NETWORK_IN, SPINE, ServerLinks
from recovery.store import peer_wire
from recovery.store.callers import Callers
from recovery.store.peer_wire import Channel, Peer, PeerError
from workers.agent.machine import clock
from workers.agent.machine.main_loop import MainLoop
from workers.agent.orders.desired_state import LinkProbe
from workers.agent.talking.link_measuring import MOST_OVERRUN, Pace, Paces, answer, measure

logger = logging.getLogger(__name__)

#: How long the caller retries, because the other agent may learn of the request later.
CALLING_SECONDS = 10.0
_PAUSE_SECONDS = 0.25
_PROBLEM_CHARACTERS = 100


class LinkProbes:
    """Run the measurement that the desired state requests. A new request does not stop a call in progress.

    Call from the main thread only.
    """

    def __init__(
        self,
        loop: MainLoop,
        address: str,
        emulated: tuple[ServerLinks, Path] | None,
        changed: Callable[[], None],
    ) -> None:
        """
        Args:
            address: listening address. emulated: this server's emulated links and the folder of their
                sockets; None without emulation. changed: called when there is something to report.
        """
        self._loop = loop
        self._address = address
        self._client = None if emulated is None else LinkClient(*emulated)
        self._changed = changed
        self._started: tuple[int, int] | None = None
        self._callers: Callers | None = None
        self._result: dict[str, Any] | None = None
        self._lease_deadline = 0.0

    def update(self, request: LinkProbe | None, lease_deadline: float) -> None:
        """Start each requested measurement once.

        Stop listening when it is no longer requested; a running call ends by itself.
        """
        self._lease_deadline = lease_deadline
        if request is None or request.key != self._started:
            self._listen_no_more()
        if request is None or request.key == self._started or clock.boot_time_seconds() >= lease_deadline:
            return
        self._started = request.key
        if request.calls:
            self._in_thread(lambda: self._measure(request))
        else:
            self._listen(request)

    def pending_result(self) -> dict[str, Any] | None:
        """Return the result that the control plane has not acknowledged; None if there is none."""
        return self._result

    def forget(self, result: Mapping[str, Any] | None) -> None:
        """Forget a result that the control plane has received."""
        if result is self._result:
            self._result = None

    def close(self) -> None:
        """Stop listening and close the connections."""
        self._listen_no_more()
        if self._client is not None:
            self._client.close()

    def _paces(self, request: LinkProbe) -> Paces:
        out = (NETWORK,) if request.same_rack else (NETWORK, SPINE)
        return Paces(lambda: Pace(self._client, out), lambda: Pace(self._client, (NETWORK_IN,)))

    def _check(self) -> None:
        if clock.boot_time_seconds() >= self._lease_deadline:
            raise PeerError("this server's lease is over")

    # Calling

    def _measure(self, request: LinkProbe) -> None:
        """Run a measurement, in a thread."""
        peer = Peer(request.server, request.address, request.port)
        result: dict[str, Any] = {"link": request.link, "number": request.number}
        ends_at = time.monotonic() + CALLING_SECONDS
        try:
            figures = measure(lambda: self._call(peer, request, ends_at), self._paces(request))
        except (OSError, ValueError, RuntimeError) as error:
            logger.warning("the link to server %s was not measured: %s", request.server, error)
            result["problem"] = (str(error) or type(error).__name__)[:_PROBLEM_CHARACTERS]
        else:
            result |= {
                "latency_seconds": figures.latency_seconds,
                "bytes_per_second": figures.bytes_per_second,
            }
            if figures.overrun > MOST_OVERRUN:
                late = f"{figures.overrun:.0%} of the time"
                result["problem"] = f"void: the machine was slower than its emulated links for {late}"
        self._loop.post(lambda: self._keep(result))

    def _call(self, peer: Peer, request: LinkProbe, ends_at: float) -> Channel:
        """Connect to the other agent, which may not listen yet. Raises OSError after ``ends_at``, by the
        monotonic clock."""
        while True:
            try:
                return peer_wire.call(peer, request.name, request.number, request.secret, self._check)
            except OSError:
                if time.monotonic() > ends_at:
                    raise
                time.sleep(_PAUSE_SECONDS)

    def _keep(self, result: dict[str, Any]) -> None:
        self._result = result
        self._changed()

    # Answering

    def _listen(self, request: LinkProbe) -> None:
        def greet(connection: socket.socket) -> tuple[Channel, str, int]:
            return peer_wire.answer(connection, request.here, secret_of, self._check)

        def secret_of(name: str, number: int) -> str | None:
            return request.secret if (name, number) == (request.name, request.number) else None

        def serve(channel: Channel, _name: str, _number: int) -> None:
            if answer(channel, self._paces(request)):
                self._loop.post(lambda: self._done(request.key))

        try:
            self._callers = Callers(self._address, request.port, greet, serve)
        except OSError as error:
            logger.warning("cannot listen on port %d for a link measurement: %s", request.port, error)

    def _done(self, key: tuple[int, int]) -> None:
        if self._started == key:
            self._listen_no_more()

    def _listen_no_more(self) -> None:
        if self._callers is not None:
            self._callers.close()
            self._callers = None

    def _in_thread(self, work: Callable[[], None]) -> None:
        try:
            threading.Thread(target=work, name="link-probe", daemon=True).start()
        except RuntimeError as error:  # too many threads on this server
            logger.warning("no link is measured: %s", error)
