"""Requests of workers to their store: reserve room for shards, store them, and read earlier shards.

Workers are untrusted: a worker may write its own shards, and read those of earlier generations of its job.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from recovery.store import wire
from recovery.store.allowances import SUB_BUFFERS, Sending
from recovery.store.calls import Sent
from recovery.store.holdings import SLOTS, Holding, Holdings, Owner, RefusedError, Slot, Version
from recovery.store.memory import Region, checksums, chunk_checksums, take_memory
from recovery.store.peers import Elsewhere, Peers
from recovery.store.wire import Inbox, Message, WireError, boot_seconds

logger = logging.getLogger(__name__)

LARGEST_DESCRIPTION_BYTES = 256 << 20
#: Interval of progress messages to a worker that waits.
PROGRESS_SECONDS = 1.0


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
        """Parse the agent's message. Raises KeyError, TypeError and ValueError."""
        owner = Owner(str(entry["job"]), int(entry["generation"]), int(entry["rank"]))
        user_id = None if entry["user_id"] is None else int(entry["user_id"])
        size, most = int(entry["world_size"]), int(entry["limit_bytes"])
        return cls(str(entry["key"]), str(entry["box"]), user_id, owner, size, most)


@dataclass(eq=False)
class Connection:
    """The connection of a worker, or without `served` of an agent."""

    socket: socket.socket
    inbox: Inbox
    served: Served | None


class Serving(Protocol):
    """The parts of the store's loop that answering a worker requires."""

    def send(
        self, connection: Connection, message: Mapping[str, Any], descriptors: tuple[int, ...] = (), /
    ) -> None:
        """Send an answer with descriptors."""

    def later(self, work: Callable[[], None], /) -> None:
        """Run `work` in the loop's own thread. Callable from any thread."""

    def in_background(self, work: Callable[[], Any], then: Callable[[Any], None], /) -> None:
        """Run `work` in a thread, then `then` in the loop's own with the result, or None on failure."""

    def require_lease(self) -> None:
        """Raise RefusedError if the lease of this server is over."""


class WorkerRequests:
    """Answers workers, in the thread that owns the contents."""

    def __init__(self, server: Serving, holdings: Holdings, peers: Peers) -> None:
        self._server = server
        self._holdings = holdings
        self._peers = peers
        #: Where peers have versions that are not here, for workers that asked.
        self._elsewhere: dict[Owner, Elsewhere] = {}

    def forget_unreachable(self) -> None:
        """Forget versions found at peers that are no longer sources."""
        self._elsewhere = {o: some for o, some in self._elsewhere.items() if self._peers.may_have(o)}

    def answer(self, connection: Connection, served: Served, message: Message) -> None:
        """Carry out a worker's request or refuse it with a reason. Raises WireError if it is malformed."""
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
                self._server.require_lease()
                handle(connection, served, message)
            except RefusedError as error:
                logger.info("%s of %s is refused: %s", what, served.owner, error)
                self._server.send(connection, {"refused": str(error), "what": what})
            return
        raise WireError("no request")

    def _reserve(self, connection: Connection, served: Served, message: Message) -> None:
        size = wire.number(message, "reserve")
        committed = wire.optional_number(message, "committed")
        slots = self._holdings.reserve(served.owner, served.world_size, size, committed, served.limit_bytes)
        regions = [slot.region for slot in slots if slot.region is not None]
        if len(regions) < SLOTS:
            raise RefusedError("the store is still reading what was written before")
        lacking = [region for region in regions if not region.taken]
        if not lacking:
            self._hand_over(connection, slots)
            return
        # Duplicate the descriptors, because the slots may be released meanwhile.
        taking = [(os.dup(region.descriptor), region.size) for region in lacking]
        taken = partial(self._taken, connection, served.owner, slots, lacking)
        self._server.in_background(partial(_take_all, taking), taken)

    def _taken(
        self,
        connection: Connection,
        owner: Owner,
        slots: Sequence[Slot],
        regions: Sequence[Region],
        problem: str | None,
    ) -> None:
        """Hand over the slots if the memory of these regions was allocated, else release them."""
        if problem == "" and all(any(slot.region is region for slot in slots) for region in regions):
            for region in regions:
                region.taken = True
            self._hand_over(connection, slots)
            return
        self._holdings.give_back(owner, regions)
        size = sum(region.size for region in regions)
        reason = f"the server has no {size} bytes of memory: {problem or 'nobody wants it any more'}"
        self._server.send(connection, {"refused": reason, "what": "reserve"})

    def _hand_over(self, connection: Connection, slots: Sequence[Slot]) -> None:
        regions = [slot.region for slot in slots if slot.region is not None]
        held = [None if slot.version is None else slot.version.iteration for slot in slots]
        sizes = [region.size for region in regions]
        descriptors = tuple(region.descriptor for region in regions)
        self._server.send(connection, {"slots": sizes, "holds": held}, descriptors)

    def _begin(self, connection: Connection, served: Served, message: Message) -> None:
        place = wire.number(message, "begin", SLOTS - 1)
        self._holdings.begin(served.owner, place, wire.optional_number(message, "committed"))

    def _end(self, connection: Connection, served: Served, message: Message) -> None:
        place = wire.number(message, "end", SLOTS - 1)
        iteration, size = wire.number(message, "iteration"), wire.number(message, "bytes")
        description_bytes = wire.number(message, "description_bytes", LARGEST_DESCRIPTION_BYTES)
        buffers = SUB_BUFFERS if message.get("buffers") is None else wire.number(message, "buffers")
        sending = Sending.bounded(
            wire.amount(message, "pause_seconds"), wire.amount(message, "seconds"), buffers
        )
        region = self._holdings.end(served.owner, place, iteration, size, description_bytes)
        try:
            # Use a separate descriptor, because the slot may be released while it is read.
            descriptor = region.open_to_read()
        except OSError as error:
            self._holdings.unreadable(served.owner, place)
            raise RefusedError(f"what was written cannot be read: {error.strerror}") from error
        self._peers.expect(served.owner, sending)

        def compute() -> Version:
            try:
                found = checksums(descriptor, size)
            finally:
                os.close(descriptor)
            return Version(iteration, size, description_bytes, found, boot_seconds())

        self._server.in_background(compute, partial(self._checked, connection, served, place, sending))

    def _allow(self, connection: Connection, served: Served, message: Message) -> None:
        within = None if message.get("within") is None else wire.amount(message, "within")
        takes = wire.amount(message, "takes")
        self._peers.allow(served.owner, wire.number(message, "allow"), within, takes)

    def _checked(
        self,
        connection: Connection,
        served: Served,
        place: int,
        sending: Sending,
        version: Version | None,
    ) -> None:
        if version is None:
            self._holdings.unreadable(served.owner, place)
            self._server.send(connection, {"refused": "what was written cannot be read", "what": "end"})
        elif self._holdings.checked(served.owner, place, version):
            self._peers.copy(
                served.owner,
                place,
                version,
                sending,
                partial(self._whole, connection, served.owner, version.iteration),
            )

    def _whole(self, connection: Connection, owner: Owner, iteration: int, sent: list[Sent]) -> None:
        whole = {"complete": iteration, **self._peers.copies_of(owner)}
        copied = {
            "peers": len(sent),
            "bytes": sum(one.bytes for one in sent),
            "seconds": max((one.seconds for one in sent), default=0.0),
            "startup_seconds": max((one.startup_seconds for one in sent), default=0.0),
        }
        self._server.send(connection, {**whole, "copied": copied} if sent else whole)

    def _asked_for(self, served: Served, message: Message, what: str) -> tuple[Owner, Holding | None]:
        """Return a shard of an earlier generation of the worker's own job."""
        generation = wire.number(message, "generation")
        if generation >= served.owner.generation:
            raise RefusedError(f"generation {generation} is none before {served.owner.generation}")
        owner = Owner(served.owner.job, generation, wire.number(message, what))
        return owner, self._holdings.get(owner)

    def _find(self, connection: Connection, served: Served, message: Message) -> None:
        """Answer with the versions that still match their checksums; the others are forgotten."""
        owner, holding = self._asked_for(served, message, "find")
        self._holdings.freeze(owner.job, owner.generation)
        checking = [
            (slot.region.open_to_read(), slot.version)
            for slot in ([] if holding is None else holding.slots)
            if slot.region is not None and slot.version is not None
        ]

        goes_on = self._goes_on(connection)

        def compare() -> list[tuple[int, bool]]:
            found = []
            for descriptor, version in checking:
                try:
                    whole = chunk_checksums(descriptor, version.bytes, goes_on) == version.checksums.chunks
                    found.append((version.iteration, whole))
                finally:
                    os.close(descriptor)
            return found

        self._server.in_background(compare, partial(self._compared, connection, owner))

    def _compared(self, connection: Connection, owner: Owner, found: list[tuple[int, bool]] | None) -> None:
        for iteration, whole in found or []:
            if not whole:
                logger.error("iteration %d of %s is not what it was: forgotten", iteration, owner)
                self._holdings.drop(owner, iteration)
        here = {iteration for iteration, whole in found or [] if whole}

        def answer(elsewhere: Elsewhere) -> None:
            if elsewhere:
                self._elsewhere[owner] = elsewhere
            self._server.send(connection, {"found": sorted(here | set(elsewhere)), "rank": owner.rank})

        self._peers.find(owner, answer)

    def _open(self, connection: Connection, served: Served, message: Message) -> None:
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
                self._server.send(connection, {"refused": str(error), "what": "open"})

        # Each answer allows one fetch, so that a worker cannot fill the memory with repeated requests.
        del self._elsewhere[owner][iteration]
        self._peers.fetch(owner, *found, fetched, self._goes_on(connection))

    def _goes_on(self, connection: Connection) -> Callable[[], None]:
        """Return a callback that reports progress to a worker, from any thread and at a limited rate."""
        told_at = boot_seconds()

        def goes_on() -> None:
            nonlocal told_at
            if boot_seconds() >= told_at + PROGRESS_SECONDS:
                told_at = boot_seconds()
                self._server.later(partial(self._server.send, connection, {"goes_on": True}))

        return goes_on

    def _hand_out(self, connection: Connection, owner: Owner, slot: Slot | None) -> None:
        if slot is None or slot.region is None or slot.version is None:
            raise RefusedError(f"rank {owner.rank} has no such version here")
        descriptor = slot.region.open_to_read()
        version = slot.version
        sizes = {"bytes": version.bytes, "description_bytes": version.description_bytes}
        try:
            self._server.send(connection, {"opened": sizes, "rank": owner.rank}, (descriptor,))
        finally:
            os.close(descriptor)


def _take_all(regions: Sequence[tuple[int, int]]) -> str:
    """Allocate the memory of regions given by descriptor and size, and close these; return the error text."""
    try:
        for descriptor, size in regions:
            for _taken in take_memory(descriptor, size):
                pass
    except OSError as error:
        return error.strerror or str(error)
    finally:
        for descriptor, _size in regions:
            os.close(descriptor)
    return ""
