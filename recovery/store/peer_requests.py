"""Requests of other servers' stores to this one: keep copies, list the versions of a shard, and send shards.

Each caller is answered in its own thread (`callers.py`), which accesses the contents through the store's
thread.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import Callable
from functools import partial

from recovery.store import calls, peer_wire, wire
from recovery.store.allowances import Sending
from recovery.store.groups import Groups
from recovery.store.holdings import Holdings, Owner, RefusedError, Version
from recovery.store.links import StoreLinks
from recovery.store.memory import Checksums, Region, take_memory
from recovery.store.peer_wire import Channel, PeerError
from recovery.store.shard_stream import receive_shard
from recovery.store.threads import Threads
from recovery.store.wire import Message, boot_seconds

logger = logging.getLogger(__name__)


class PeerRequests:
    """Answers other stores, each in its own thread."""

    def __init__(
        self,
        holdings: Holdings,
        threads: Threads,
        check_lease: Callable[[], None],
        links: StoreLinks,
        groups: Callable[[], Groups],
    ) -> None:
        """Args: check_lease: raises RefusedError without a lease. groups: returns the current groups."""
        self._holdings = holdings
        self._threads = threads
        self._check_lease = check_lease
        self._links = links
        self._groups = groups
        #: The caller of each copy that is being received.
        self._receiving: dict[Owner, Channel] = {}

    def greet(self, connection: socket.socket) -> tuple[Channel, str, int]:
        self._check_lease_of_peers()
        groups = self._groups()
        return peer_wire.answer(connection, groups.server, groups.secret_of, self._check_lease_of_peers)

    def _check_lease_of_peers(self) -> None:
        try:
            self._check_lease()
        except RefusedError as error:
            raise PeerError(str(error)) from error

    def serve(self, channel: Channel, job: str, generation: int) -> None:
        for message in channel.messages():
            try:
                if "put" in message:
                    self._take(channel, Owner(job, generation, wire.number(message, "put")), message)
                elif "list" in message:
                    owner = Owner(job, generation, wire.number(message, "list"))
                    channel.send({"versions": self._threads.ask_own(partial(self._listed, owner))})
                elif "get" in message:
                    owner = Owner(job, generation, wire.number(message, "get"))
                    self._give(channel, owner, message)
                else:
                    raise PeerError("no request")
            except RefusedError as error:
                logger.info("what a peer asks of job %s is refused: %s", job, error)
                channel.send({"refused": str(error)})

    def _take(self, channel: Channel, owner: Owner, message: Message) -> None:
        """Receive a copy. An incomplete copy never counts."""
        size = calls.size_of(message)
        sending = Sending.bounded(wire.amount(message, "pause_seconds"), 0.0, wire.number(message, "buffers"))
        capacity, committed = wire.number(message, "capacity"), wire.optional_number(message, "committed")
        if not size.description_bytes <= size.bytes <= capacity:
            raise RefusedError(f"{size.bytes} bytes in a slot of {capacity}")
        begun: list[tuple[int, Region]] = []

        def begin() -> int:
            if not self._groups().keeps(owner):
                raise RefusedError(f"no copy of rank {owner.rank} is kept here")
            if owner in self._receiving:
                raise RefusedError(f"another copy of rank {owner.rank} is on its way")
            place, region = self._holdings.begin_copy(owner, size.world_size, capacity, committed)
            self._receiving[owner] = channel
            begun.append((place, region))
            return os.dup(region.descriptor)

        def arrived() -> None:
            if self._receiving.get(owner) is channel:
                del self._receiving[owner]

        def end(version: Version) -> None:
            # Before the caller receives the answer, because the next version may follow at once.
            arrived()
            self._holdings.end_copy(owner, *begun[0], version)

        try:
            descriptor = self._threads.ask_own(begin)
            try:
                way = self._links.back()
                channel.allow_pauses(sending.pause_seconds)
                self._take_memory(channel, owner, begun[0][1], descriptor)
                rack = self._links.rack
                channel.send({"ready": True} if rack is None else {"ready": True, "rack": rack})
                chunks, sha256 = receive_shard(
                    channel, size.bytes, descriptor, way, self._links.into_memory(), sending.buffers
                )
            finally:
                os.close(descriptor)
            whole = Version(
                size.iteration, size.bytes, size.description_bytes, Checksums(chunks, sha256), boot_seconds()
            )
            self._threads.ask_own(lambda: end(whole))
            channel.send({"whole": size.iteration})
        finally:
            # Queued after `begin`, even if `begin` came too late to be waited for.
            self._threads.later(arrived)

    def _take_memory(self, channel: Channel, owner: Owner, region: Region, descriptor: int) -> None:
        """Allocate a slot's memory before it is written, reporting progress to the caller."""
        if region.taken:
            return
        try:
            for taken in take_memory(descriptor, region.size):
                if taken < region.size:
                    channel.send({"taking": taken})
        except OSError as error:
            if isinstance(error, PeerError) or error.errno not in (errno.ENOMEM, errno.ENOSPC):
                raise
            self._threads.ask_own(lambda: self._holdings.give_back(owner, [region]))
            raise RefusedError(
                f"the server has no {region.size} bytes of memory: {error.strerror}"
            ) from error
        region.taken = True

    def _listed(self, owner: Owner) -> list[list[int]]:
        """List the versions of a shard for a later generation, and freeze the earlier one."""
        self._holdings.freeze(owner.job, owner.generation)
        holding = self._holdings.get(owner)
        if holding is None:
            return []
        return [
            [version.iteration, version.bytes, version.description_bytes, holding.world_size]
            for version in holding.versions()
        ]

    def _give(self, channel: Channel, owner: Owner, message: Message) -> None:
        iteration = wire.number(message, "iteration")

        def find() -> tuple[Version, int]:
            holding = self._holdings.get(owner)
            slot = None if holding is None else holding.slot_of(iteration)
            if slot is None or slot.region is None or slot.version is None:
                raise RefusedError(f"rank {owner.rank} has no such version here")
            return slot.version, slot.region.open_to_read()

        version, descriptor = self._threads.ask_own(find)
        try:
            channel.send({"sending": version.bytes, "description_bytes": version.description_bytes})
            calls.send_version(channel, descriptor, version, self._links.to(calls.rack_of(message)))
        finally:
            os.close(descriptor)
