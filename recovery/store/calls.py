"""Requests of a store to another: keep a copy, list the versions of a shard, and send one."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from recovery.store import peer_wire, wire
from recovery.store.allowances import SUB_BUFFERS, Allowance, Sending
from recovery.store.holdings import Owner, Version
from recovery.store.links import StoreLinks, Way
from recovery.store.memory import Checksums
from recovery.store.peer_wire import Channel, Peer, PeerError, ShardSize
from recovery.store.shard_stream import Take, all_at_once, receive_shard, send_shard
from recovery.store.wire import Message, boot_seconds


@dataclass(frozen=True)
class Copying:
    """A version to be copied to other servers."""

    owner: Owner
    #: Secret of the generation, which both stores prove to have.
    secret: str
    header: Mapping[str, Any]
    #: The shard's version to be copied.
    version: Version
    sending: Sending
    allowance: Allowance


@dataclass(frozen=True)
class Fetching:
    """A version to be fetched; `goes_on` is called as it makes progress."""

    owner: Owner
    secret: str
    size: ShardSize
    goes_on: Callable[[], None]


@dataclass(frozen=True)
class Sent:
    """The cost of a copy: the seconds spent sending it, and the minimum time of one message."""

    #: Bytes of the copy.
    bytes: int
    #: Time spent sending it.
    seconds: float
    startup_seconds: float


def send(peer: Peer, copying: Copying, links: StoreLinks, check: Callable[[], None], descriptor: int) -> Sent:
    """Send a copy to a peer. Raises OSError and RefusedError."""
    owner, version, sending = copying.owner, copying.version, copying.sending
    with peer_wire.call(peer, owner.job, owner.generation, copying.secret, check) as channel:
        how = {"pause_seconds": sending.pause_seconds, "buffers": sending.buffers}
        channel.send({**copying.header, **how})
        answer = channel.receive()
        while "taking" in answer:  # memory is being allocated; that is progress
            answer = channel.receive()
        way = links.to(rack_of(answer))
        take = copying.allowance.take
        seconds = send_version(channel, descriptor, version, way, take, sending.buffers)
        if channel.receive().get("whole") != version.iteration:
            raise PeerError("it answers something else")
        return Sent(version.bytes, seconds, channel.startup_seconds + way.latency_seconds)


def send_version(
    channel: Channel,
    descriptor: int,
    version: Version,
    way: Way,
    take: Take = all_at_once,
    buffers: int = SUB_BUFFERS,
) -> float:
    """Send a version from memory; return the seconds spent sending. Raises OSError."""
    if not version.bytes:
        return send_shard(channel, memoryview(b""), version.checksums.sha256, way)
    # The mapping is released with its last view. Closing it here fails if an error refers to views of it.
    view = memoryview(mmap.mmap(descriptor, version.bytes, prot=mmap.PROT_READ))
    return send_shard(channel, view, version.checksums.sha256, way, take, buffers)


def versions(peer: Peer, owner: Owner, secret: str, check: Callable[[], None]) -> list[ShardSize]:
    """Return the versions that a peer has of a shard. Raises OSError and WireError."""
    with peer_wire.call(peer, owner.job, owner.generation, secret, check) as channel:
        channel.send({"list": owner.rank})
        names = ("iteration", "bytes", "description_bytes", "world_size")
        return [
            size_of(dict(zip(names, one, strict=False))) for one in channel.receive().get("versions", [])[:8]
        ]


def fetch(
    peer: Peer, fetching: Fetching, links: StoreLinks, check: Callable[[], None], descriptor: int
) -> Version:
    """Fetch a version from a peer. Raises OSError and WireError."""
    owner, size = fetching.owner, fetching.size
    with peer_wire.call(peer, owner.job, owner.generation, fetching.secret, check) as channel:
        channel.send({"get": owner.rank, "iteration": size.iteration, "rack": links.rack})
        coming = channel.receive()
        if (coming.get("sending"), coming.get("description_bytes")) != (size.bytes, size.description_bytes):
            raise PeerError("it sends something else")
        way, into_memory = links.back(), links.into_memory()
        chunks, sha256 = receive_shard(
            channel, size.bytes, descriptor, way, into_memory, goes_on=fetching.goes_on
        )
    found = Checksums(chunks, sha256)
    return Version(size.iteration, size.bytes, size.description_bytes, found, boot_seconds())


def rack_of(message: Message) -> str | None:
    """Return the rack that the other side reports."""
    rack = message.get("rack")
    return rack[:300] if isinstance(rack, str) else None


def size_of(message: Message) -> ShardSize:
    """Parse a shard's size. Raises WireError."""
    return ShardSize(
        wire.number(message, "iteration"),
        wire.number(message, "bytes"),
        wire.number(message, "description_bytes"),
        wire.number(message, "world_size", 1 << 20),
    )
