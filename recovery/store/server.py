"""The store's process: serves the workers of its node, and obeys its agent.

One thread owns all that is held; a few others compute checksums. What workers say is untrusted: each has a
socket in its own box, which says whose shards it may write and of which job it may read, and a line that
makes no sense ends its connection.
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
from functools import partial
from pathlib import Path
from typing import Any

from recovery.store import wire
from recovery.store.allowances import SUB_BUFFERS, Sending
from recovery.store.calls import Sent
from recovery.store.groups import Groups
from recovery.store.holdings import SLOTS, Holding, Holdings, Owner, RefusedError, Slot, Version
from recovery.store.links import StoreLinks
from recovery.store.memory import checksums, chunk_checksums
from recovery.store.peers import Elsewhere, Peers
from recovery.store.sockets import listen
from recovery.store.wire import Inbox, Message, WireError, boot_seconds

logger = logging.getLogger(__name__)

CONNECTIONS_OF_A_WORKER = 2
CHECKING_THREADS = 2
#: Without an agent and without a lease nobody will want what is held here.
LONELY_SECONDS = 300.0
LOOK_SECONDS = 1.0
LARGEST_DESCRIPTION_BYTES = 256 << 20
_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True)
class Served:
    """A worker as its agent describes it: where its socket is, and whose shards it may write."""

    key: str
    box: str
    user_id: int | None
    owner: Owner
    world_size: int
    limit_bytes: int

    @classmethod
    def from_message(cls, entry: Mapping[str, Any]) -> Served:
        """As the agent says it. Raises KeyError, TypeError and ValueError."""
        owner = Owner(str(entry["job"]), int(entry["generation"]), int(entry["rank"]))
        user_id = None if entry["user_id"] is None else int(entry["user_id"])
        size, most = int(entry["world_size"]), int(entry["limit_bytes"])
        return cls(str(entry["key"]), str(entry["box"]), user_id, owner, size, most)


@dataclass(eq=False)
class _Connection:
    """A worker's, or with no `served` an agent's."""

    socket: socket.socket
    inbox: Inbox
    served: Served | None


@dataclass(frozen=True)
class _Listener:
    socket: socket.socket
    served: Served | None


class StoreServer:
    """Holds recovery points, until nobody can want them any more."""

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
        self._connections: set[_Connection] = set()
        self._control_identity = (0, 0)
        self._lonely_since: float | None = None
        self._links = StoreLinks(folder)
        self._peers = Peers(self._holdings, self._run_later, self._require_lease, self._links)
        #: Where versions that are not here were found, for those who asked.
        self._elsewhere: dict[Owner, Elsewhere] = {}
        self._stopped = False
        self._listen_for_the_agent()

    def run(self) -> None:
        """Serve until the agent ends it, or is gone for good."""
        while not self._stopped:
            for key, _events in self._selector.select(LOOK_SECONDS):
                if key.fileobj is self._wake_read:
                    self._wake_read.recv(4096)
                elif isinstance(key.data, _Connection):
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
        """Whether nobody can come any more: the folder is another's or gone, or there was no agent for
        long."""
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
        connection = _Connection(accepted, Inbox(limit_bytes), served)
        self._connections.add(connection)
        self._selector.register(accepted, selectors.EVENT_READ, connection)

    @staticmethod
    def _may_speak(accepted: socket.socket, served: Served | None) -> bool:
        """Whether the process at the other end is of the user for whom the socket was made."""
        found = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _process, user_id, _group = _CREDENTIALS.unpack(found)
        own = os.geteuid()
        wanted = own if served is None or served.user_id is None else served.user_id
        if user_id == wanted:
            return True
        logger.warning("user %d may not speak here, where user %d does", user_id, wanted)
        return False

    def _read(self, connection: _Connection) -> None:
        try:
            for message, _none in connection.inbox.read(connection.socket):
                if connection.served is None:
                    self._obey(connection, message)
                else:
                    self._answer(connection, connection.served, message)
        except BlockingIOError:
            return
        except WireError as error:
            logger.warning("a connection of %s is ended: %s", connection.served or "the agent", error)
            self._drop(connection)
        except OSError:
            self._drop(connection)

    def _drop(self, connection: _Connection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            self._selector.unregister(connection.socket)
            connection.socket.close()
            if connection.served is not None:
                self._peers.lift(connection.served.owner)

    def _send(
        self, connection: _Connection, message: Mapping[str, Any], descriptors: tuple[int, ...] = ()
    ) -> None:
        """Answer; whoever does not read its answers is not spoken to any more."""
        if connection not in self._connections:
            return
        try:
            connection.socket.settimeout(1.0 if connection.served is None else 0.0)
            wire.send(connection.socket, message, descriptors)
            connection.socket.setblocking(False)
        except OSError:
            self._drop(connection)

    def _in_background(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Compute in a thread, go on in this one with the result, or None where there is none."""

        def run() -> None:
            try:
                result = work()
            except (OSError, ValueError) as error:
                logger.warning("memory cannot be read: %s", error)
                result = None
            self._run_later(lambda: then(result))

        self._threads.submit(run)

    def _run_later(self, work: Callable[[], None]) -> None:
        """From any thread: have this done in the one that owns what is held."""
        self._done.put(work)
        self._wake_write.send(b"w")

    def _require_lease(self) -> None:
        if boot_seconds() >= self._lease_deadline:
            raise RefusedError("the lease of this server is over")

    # The agent

    def _obey(self, connection: _Connection, message: Message) -> None:
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
            self._elsewhere = {o: some for o, some in self._elsewhere.items() if self._peers.may_have(o)}
        self._send(connection, self._report())

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

    def _finish(self, connection: _Connection) -> None:
        """A worker is gone: take what it had said before."""
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

    # Workers

    def _answer(self, connection: _Connection, served: Served, message: Message) -> None:
        for what, handle in (
            ("reserve", self._reserve),
            ("begin", self._begin),
            ("end", self._end),
            ("allow", self._allow),
            ("find", self._find),
            ("open", self._open),
        ):
            if what not in message:
                continue
            try:
                self._require_lease()
                handle(connection, served, message)
            except RefusedError as error:
                logger.info("%s of %s is refused: %s", what, served.owner, error)
                self._send(connection, {"refused": str(error), "what": what})
            return
        raise WireError("no request")

    def _reserve(self, connection: _Connection, served: Served, message: Message) -> None:
        size = wire.number(message, "reserve")
        committed = wire.optional_number(message, "committed")
        slots = self._holdings.reserve(served.owner, served.world_size, size, committed, served.limit_bytes)
        regions = [slot.region for slot in slots if slot.region is not None]
        if len(regions) < SLOTS:
            raise RefusedError("the store is still reading what was written before")
        held = [None if slot.version is None else slot.version.iteration for slot in slots]
        sizes = [region.size for region in regions]
        descriptors = tuple(region.descriptor for region in regions)
        self._send(connection, {"slots": sizes, "holds": held}, descriptors)

    def _begin(self, connection: _Connection, served: Served, message: Message) -> None:
        place = wire.number(message, "begin", SLOTS - 1)
        self._holdings.begin(served.owner, place, wire.optional_number(message, "committed"))

    def _end(self, connection: _Connection, served: Served, message: Message) -> None:
        place = wire.number(message, "end", SLOTS - 1)
        iteration, size = wire.number(message, "iteration"), wire.number(message, "bytes")
        description_bytes = wire.number(message, "description_bytes", LARGEST_DESCRIPTION_BYTES)
        buffers = SUB_BUFFERS if message.get("buffers") is None else wire.number(message, "buffers")
        sending = Sending.bounded(
            wire.amount(message, "pause_seconds"), wire.amount(message, "seconds"), buffers
        )
        region = self._holdings.end(served.owner, place, iteration, size, description_bytes)
        # A descriptor of its own: the slot may be given back while it is read.
        descriptor = region.open_to_read()
        self._peers.expect(served.owner, sending)

        def compute() -> Version:
            try:
                found = checksums(descriptor, size)
            finally:
                os.close(descriptor)
            return Version(iteration, size, description_bytes, found, boot_seconds())

        self._in_background(compute, partial(self._checked, connection, served, place, sending))

    def _allow(self, connection: _Connection, served: Served, message: Message) -> None:
        within = None if message.get("within") is None else wire.amount(message, "within")
        takes = wire.amount(message, "takes")
        self._peers.allow(served.owner, wire.number(message, "allow"), within, takes)

    def _checked(
        self,
        connection: _Connection,
        served: Served,
        place: int,
        sending: Sending,
        version: Version | None,
    ) -> None:
        if version is None:
            self._holdings.unreadable(served.owner, place)
            self._send(connection, {"refused": "what was written cannot be read", "what": "end"})
        elif self._holdings.checked(served.owner, place, version):
            self._peers.copy(
                served.owner,
                place,
                version,
                sending,
                partial(self._whole, connection, served.owner, version.iteration),
            )

    def _whole(self, connection: _Connection, owner: Owner, iteration: int, sent: list[Sent]) -> None:
        whole = {"complete": iteration, **self._peers.copies_of(owner)}
        copied = {
            "peers": len(sent),
            "bytes": sum(one.bytes for one in sent),
            "seconds": max((one.seconds for one in sent), default=0.0),
            "startup_seconds": max((one.startup_seconds for one in sent), default=0.0),
        }
        self._send(connection, {**whole, "copied": copied} if sent else whole)

    def _asked_for(self, served: Served, message: Message, what: str) -> tuple[Owner, Holding | None]:
        """A shard of an earlier generation of the worker's own job."""
        generation = wire.number(message, "generation")
        if generation >= served.owner.generation:
            raise RefusedError(f"generation {generation} is none before {served.owner.generation}")
        owner = Owner(served.owner.job, generation, wire.number(message, what))
        return owner, self._holdings.get(owner)

    def _find(self, connection: _Connection, served: Served, message: Message) -> None:
        """Say which versions are still what they were when they were complete; others are forgotten."""
        owner, holding = self._asked_for(served, message, "find")
        self._holdings.freeze(owner.job, owner.generation)
        checking = [
            (slot.region.open_to_read(), slot.version)
            for slot in ([] if holding is None else holding.slots)
            if slot.region is not None and slot.version is not None
        ]

        def compare() -> list[tuple[int, bool]]:
            found = []
            for descriptor, version in checking:
                try:
                    whole = chunk_checksums(descriptor, version.bytes) == version.checksums.chunks
                    found.append((version.iteration, whole))
                finally:
                    os.close(descriptor)
            return found

        self._in_background(compare, partial(self._compared, connection, owner))

    def _compared(self, connection: _Connection, owner: Owner, found: list[tuple[int, bool]] | None) -> None:
        for iteration, whole in found or []:
            if not whole:
                logger.error("iteration %d of %s is not what it was: forgotten", iteration, owner)
                self._holdings.drop(owner, iteration)
        here = {iteration for iteration, whole in found or [] if whole}

        def answer(elsewhere: Elsewhere) -> None:
            if elsewhere:
                self._elsewhere[owner] = elsewhere
            self._send(connection, {"found": sorted(here | set(elsewhere)), "rank": owner.rank})

        self._peers.find(owner, answer)

    def _open(self, connection: _Connection, served: Served, message: Message) -> None:
        owner, holding = self._asked_for(served, message, "open")
        iteration = wire.number(message, "iteration")
        slot = None if holding is None else holding.slot_of(iteration)
        found = self._elsewhere.get(owner, {}).get(iteration)
        if slot is not None or found is None:
            self._hand_out(connection, owner, slot)
            return

        def fetched(brought: Slot | None, problem: str) -> None:
            try:
                if brought is None:
                    raise RefusedError(f"rank {owner.rank}'s shard could not be fetched: {problem}")
                self._hand_out(connection, owner, brought)
            except RefusedError as error:
                self._send(connection, {"refused": str(error), "what": "open"})

        # Once for each answer that was given: a worker that asks on does not fill memory.
        del self._elsewhere[owner][iteration]
        self._peers.fetch(owner, *found, fetched)

    def _hand_out(self, connection: _Connection, owner: Owner, slot: Slot | None) -> None:
        if slot is None or slot.region is None or slot.version is None:
            raise RefusedError(f"rank {owner.rank} has no such version here")
        descriptor = slot.region.open_to_read()
        version = slot.version
        sizes = {"bytes": version.bytes, "description_bytes": version.description_bytes}
        try:
            self._send(connection, {"opened": sizes, "rank": owner.rank}, (descriptor,))
        finally:
            os.close(descriptor)
