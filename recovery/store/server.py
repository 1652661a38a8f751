"""The store's process: serves the workers of its node on behalf of its agent.

One thread owns the contents; a few others compute checksums. Workers are untrusted. Each has a socket in its
own box, which determines whose shards it may write and which job's it may read. A malformed line ends the
connection.
"""

from __future__ import annotations

import logging
import os
import queue
import selectors
import socket
import struct
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulated_links.sockets import listen
from recovery.store import wire
from recovery.store.groups import Groups
from recovery.store.holdings import Holdings, RefusedError
from recovery.store.links import StoreLinks
from recovery.store.peers import Peers
from recovery.store.wire import Inbox, Message, WireError, boot_seconds
from recovery.store.worker_requests import Connection, Served, WorkerRequests

logger = logging.getLogger(__name__)

CONNECTIONS_OF_A_WORKER = 2
CHECKING_THREADS = 2
#: Without an agent and a lease for this long, the store ends.
LONELY_SECONDS = 300.0
LOOK_SECONDS = 1.0
_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True)
class _Listener:
    socket: socket.socket
    served: Served | None


class StoreServer:
    """Holds recovery points until no agent needs them."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        """Listen for the agent. Raises OSError."""
        self._folder = folder
        self._holdings = Holdings(limit_bytes)
        self._lease_deadline = 0.0
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._done: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(CHECKING_THREADS, thread_name_prefix="checksums")
        self._listeners: dict[str, _Listener] = {}
        self._connections: set[Connection] = set()
        self._control_identity = (0, 0)
        self._lonely_since: float | None = None
        self._links = StoreLinks(folder)
        self._peers = Peers(self._holdings, self.later, self.require_lease, self._links)
        self._requests = WorkerRequests(self, self._holdings, self._peers)
        self._stopped = False
        self._listen_for_the_agent()

    def run(self) -> None:
        """Serve until the agent ends the store, or is gone for good."""
        while not self._stopped:
            for key, _events in self._selector.select(LOOK_SECONDS):
                if key.fileobj is self._wake_read:
                    self._wake_read.recv(4096)
                elif isinstance(key.data, Connection):
                    self._read(key.data)
                else:
                    self._accept(key.data)
            while not self._done.empty():
                self._done.get()()
            if self._is_forsaken():
                logger.info("no agent wants what is held here any more")
                self._stopped = True
        for listener in self._listeners.values():
            listener.socket.close()
        self._peers.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _listen_for_the_agent(self) -> None:
        listener = listen(self._folder, wire.CONTROL_NAME, None, 4)
        entry = _Listener(listener, None)
        self._listeners[""] = entry
        self._selector.register(listener, selectors.EVENT_READ, entry)
        found = os.stat(self._folder / wire.CONTROL_NAME)
        self._control_identity = (found.st_dev, found.st_ino)

    def _is_forsaken(self) -> bool:
        """Whether no agent can come any more: the folder is replaced or gone, or no agent connected for
        `LONELY_SECONDS`."""
        try:
            found = os.stat(self._folder / wire.CONTROL_NAME)
        except OSError:
            return True
        if (found.st_dev, found.st_ino) != self._control_identity:
            return True
        now = boot_seconds()
        if any(one.served is None for one in self._connections) or now < self._lease_deadline:
            self._lonely_since = None
            return False
        self._lonely_since = self._lonely_since or now
        return now >= self._lonely_since + LONELY_SECONDS

    # Connections

    def _accept(self, listener: _Listener) -> None:
        try:
            accepted, _ = listener.socket.accept()
        except OSError:
            return
        served = listener.served
        same = [one for one in self._connections if one.served is not None and one.served == served]
        if not self._may_speak(accepted, served) or len(same) >= CONNECTIONS_OF_A_WORKER:
            accepted.close()
            return
        accepted.setblocking(False)
        limit_bytes = wire.CONTROL_LIMIT_BYTES if served is None else wire.LINE_LIMIT_BYTES
        connection = Connection(accepted, Inbox(limit_bytes), served)
        self._connections.add(connection)
        self._selector.register(accepted, selectors.EVENT_READ, connection)

    @staticmethod
    def _may_speak(accepted: socket.socket, served: Served | None) -> bool:
        """Whether the peer process belongs to the user for whom the socket was made."""
        found = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _process, user_id, _group = _CREDENTIALS.unpack(found)
        own = os.geteuid()
        wanted = own if served is None or served.user_id is None else served.user_id
        if user_id == wanted:
            return True
        logger.warning("user %d may not speak here, where user %d does", user_id, wanted)
        return False

    def _read(self, connection: Connection) -> None:
        try:
            for message, _none in connection.inbox.read(connection.socket):
                if connection.served is None:
                    self._obey(connection, message)
                else:
                    self._requests.answer(connection, connection.served, message)
        except BlockingIOError:
            return
        except WireError as error:
            logger.warning("a connection of %s is ended: %s", connection.served or "the agent", error)
            self._drop(connection)
        except OSError:
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            self._selector.unregister(connection.socket)
            connection.socket.close()
            if connection.served is not None:
                self._peers.lift(connection.served.owner)

    def send(
        self, connection: Connection, message: Mapping[str, Any], descriptors: tuple[int, ...] = ()
    ) -> None:
        """Send an answer; a peer that does not read its answers is disconnected."""
        if connection not in self._connections:
            return
        try:
            connection.socket.settimeout(1.0 if connection.served is None else 0.0)
            wire.send(connection.socket, message, descriptors)
            connection.socket.setblocking(False)
        except OSError:
            self._drop(connection)

    def in_background(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Run `work` in a thread, then `then` in this one with its result, or None on failure."""

        def run() -> None:
            result = None
            try:
                result = work()
            except OSError as error:
                logger.warning("memory cannot be read: %s", error)
            except Exception:
                logger.exception("memory cannot be read")
            finally:
                self.later(lambda: then(result))

        self._threads.submit(run)

    def later(self, work: Callable[[], None]) -> None:
        """Run `work` in the thread that owns the contents. Callable from any thread."""
        self._done.put(work)
        self._wake_write.send(b"w")

    def require_lease(self) -> None:
        """Raise RefusedError if the lease of this server is over: the contents may be obsolete."""
        if boot_seconds() >= self._lease_deadline:
            raise RefusedError("the lease of this server is over")

    # The agent

    def _obey(self, connection: Connection, message: Message) -> None:
        if message.get("quit"):
            self._stopped = True
            return
        state = message.get("state")
        if not isinstance(state, dict):
            raise WireError("neither a state nor quit")
        try:
            served = {entry["key"]: Served.from_message(entry) for entry in state["serve"]}
            self._lease_deadline = float(state["lease"])
            jobs = state["jobs"]
            spare = frozenset(map(str, state.get("spare", ())))
            peers = state.get("peers")
            groups = None if peers is None else Groups.from_message(peers)
            listen = None if peers is None or peers["port"] is None else (peers["address"], peers["port"])
            self._links.obey(state.get("links"))
        except (KeyError, TypeError, ValueError) as error:
            raise WireError(f"no state: {error!r}") from error
        self._serve(served)
        self._holdings.spare = spare
        if jobs is not None:
            self._holdings.forget_all_but({str(job) for job in jobs})
        if groups is not None:
            self._peers.obey(listen, groups)
            self._requests.forget_unreachable()
        self.send(connection, self._report())

    def _serve(self, served: Mapping[str, Served]) -> None:
        """Listen in the boxes of these workers, and of no others."""
        for key, listener in list(self._listeners.items()):
            if listener.served is not None and served.get(key) != listener.served:
                self._selector.unregister(listener.socket)
                listener.socket.close()
                del self._listeners[key]
                for connection in [one for one in self._connections if one.served == listener.served]:
                    self._finish(connection)
        for key, one in served.items():
            if key in self._listeners:
                continue
            try:
                listening = listen(Path(one.box), wire.SOCKET_NAME, one.user_id, 4)
            except OSError as error:
                logger.warning("worker %s cannot be served: %s", key, error)
                continue
            self._listeners[key] = _Listener(listening, one)
            self._selector.register(listening, selectors.EVENT_READ, self._listeners[key])

    def _finish(self, connection: Connection) -> None:
        """Process the remaining messages of a worker that is gone, then disconnect it."""
        while connection in self._connections:
            try:
                connection.socket.recv(1, socket.MSG_PEEK)
            except OSError:
                break
            self._read(connection)
        self._drop(connection)

    def _report(self) -> Message:
        now = boot_seconds()
        holdings = []
        for owner, holding in self._holdings:
            versions = holding.versions()
            if versions:
                holdings.append(
                    {
                        "job": owner.job,
                        "generation": owner.generation,
                        "rank": owner.rank,
                        "world_size": holding.world_size,
                        "iteration": versions[0].iteration,
                        "bytes": versions[0].bytes,
                        "reserved_bytes": holding.bytes,
                        "age_seconds": max(0.0, now - versions[0].completed_at),
                        **self._peers.copies_of(owner),
                    }
                )
        return {
            "holdings": holdings,
            "used_bytes": self._holdings.used_bytes,
            "limit_bytes": self._holdings.limit_bytes,
            **self._peers.report(),
        }
