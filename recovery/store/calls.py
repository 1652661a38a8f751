"""What a store asks of another: that it keeps a copy, what it has of a shard, and that it sends one."""

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
    """A version that is to be kept elsewhere too."""

    owner: Owner
    secret: str
    header: Mapping[str, Any]
    version: Version
    sending: Sending
    allowance: Allowance


@dataclass(frozen=True)
class Fetching:
    """A version that is to be brought here; `goes_on` is called while it comes."""

    owner: Owner
    secret: str
    size: ShardSize
    goes_on: Callable[[], None]


@dataclass(frozen=True)
class Sent:
    """What a copy took: the seconds in which it was being sent, and what one message takes at least."""

    bytes: int
    seconds: float
    startup_seconds: float


def send(peer: Peer, copying: Copying, links: StoreLinks, check: Callable[[], None], descriptor: int) -> Sent:
    """Have a peer keep a copy. Raises OSError and RefusedError."""
    owner, version, sending = copying.owner, copying.version, copying.sending
    with peer_wire.call(peer, owner.job, owner.generation, copying.secret, check) as channel:
        how = {"pause_seconds": sending.pause_seconds, "buffers": sending.buffers}
        channel.send({**copying.header, **how})
        answer = channel.receive()
        while "taking" in answer:  # memory for it; that goes on
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
    """Send what is in memory; returns the seconds in which it was being sent. Raises OSError."""
    if not version.bytes:
        return send_shard(channel, memoryview(b""), version.checksums.sha256, way)
    # The mapping goes with its last view. It cannot be closed here: an error refers to views of it.
    view = memoryview(mmap.mmap(descriptor, version.bytes, prot=mmap.PROT_READ))
    return send_shard(channel, view, version.checksums.sha256, way, take, buffers)


def versions(peer: Peer, owner: Owner, secret: str, check: Callable[[], None]) -> list[ShardSize]:
    """What a peer has of a shard. Raises OSError and WireError."""
    with peer_wire.call(peer, owner.job, owner.generation, secret, check) as channel:
        channel.send({"list": owner.rank})
        names = ("iteration", "bytes", "description_bytes", "world_size")
        return [
            size_of(dict(zip(names, one, strict=False))) for one in channel.receive().get("versions", [])[:8]
        ]


def fetch(
    peer: Peer, fetching: Fetching, links: StoreLinks, check: Callable[[], None], descriptor: int
) -> Version:
    """Bring a version from a peer. Raises OSError and WireError."""
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
    """Where the other side says that it is."""
    rack = message.get("rack")
    return rack[:300] if isinstance(rack, str) else None


def size_of(message: Message) -> ShardSize:
    """Raises WireError."""
    return ShardSize(
        wire.number(message, "iteration"),
        wire.number(message, "bytes"),
        wire.number(message, "description_bytes"),
        wire.number(message, "world_size", 1 << 20),
    )
