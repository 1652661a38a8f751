"""What a store does with the stores of other servers: has them keep copies, keeps theirs, fetches what a
rank reads that is not here.

All that is held belongs to the store's own thread. What waits for a network runs in threads of its own, each
for a bounded time; they ask the store's thread for what they need of it.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from recovery.store import calls, peer_wire, wire
from recovery.store.allowances import Allowance, Sending
from recovery.store.callers import Callers
from recovery.store.calls import FETCH_SECONDS, Sent
from recovery.store.groups import Groups
from recovery.store.holdings import Holdings, Owner, RefusedError, Slot, Version
from recovery.store.links import StoreLinks
from recovery.store.memory import Checksums, Region
from recovery.store.peer_wire import Channel, Peer, PeerError, ShardSize
from recovery.store.setbacks import Setbacks
from recovery.store.shard_stream import receive_shard
from recovery.store.wire import Message, boot_seconds

logger = logging.getLogger(__name__)

#: A caller that asks nothing is let go.
IDLE_SECONDS = 10.0
_OWN_THREAD_SECONDS = 10.0

#: Ranks that may wait for the same answer.
MOST_WAITING = 8

Found = TypeVar("Found")
#: By iteration, how large a shard is and where it lies.
Elsewhere = dict[int, tuple[ShardSize, Peer]]


class Peers:
    """The store's dealings with others. Its methods are for the store's own thread."""

    def __init__(
        self,
        holdings: Holdings,
        later: Callable[[Callable[[], None]], None],
        check_lease: Callable[[], None],
        links: StoreLinks,
    ) -> None:
        """`later` runs something in the store's own thread; `check_lease` raises RefusedError."""
        self._holdings = holdings
        self._links = links
        #: Of the copies that are on their way.
        self._allowances: dict[Owner, Allowance] = {}
        self._later = later
        self._check_lease = check_lease
        self._groups = Groups(None, {})
        self._callers: Callers | None = None
        #: The callers from whom a copy is coming.
        self._receiving: dict[Owner, Channel] = {}
        #: Who waits for what others have of a shard.
        self._asking: dict[Owner, list[Callable[[Elsewhere], None]]] = {}
        self._setbacks = Setbacks()
        #: Copies of the version that was kept last of each rank here, this server's own among them.
        self._copies: dict[Owner, int] = {}
        #: What is in the way of copies, by the server that it concerns.
        self._problems: dict[str, str] = {}

    # What the agent says

    def obey(self, listen: tuple[str, int] | None, groups: Groups) -> None:
        """Listen there, and have to do with these generations alone."""
        held = {(owner.job, owner.generation) for owner, _holding in self._holdings}
        self._groups = groups.with_secrets_of(self._groups, held)
        # A peer that nobody asks for a copy any more is in nobody's way.
        wanted = {peer.server for peer in groups.all_targets()}
        self._problems = {one: text for one, text in self._problems.items() if one in wanted or not one}
        if self._callers is not None and self._callers.where != listen:
            self._callers.close()
            self._callers = None
        if self._callers is None and listen is not None:
            try:
                self._callers = Callers(*listen, self._greet, self._serve)
                self._problems.pop("", None)
            except OSError as error:
                problem = f"this server's store cannot listen on port {listen[1]}: {error.strerror}"
                if self._problems.get("") != problem:
                    logger.warning("%s", problem)
                self._problems[""] = problem

    def close(self) -> None:
        """Listen no more."""
        if self._callers is not None:
            self._callers.close()

    def may_have(self, owner: Owner) -> bool:
        """Whether a later generation is to read that rank's shard here, and others may have it."""
        return bool(self._groups.sources(owner))

    def report(self) -> Message:
        """How well the state of the workers here is protected, and what is in the way of more."""
        owners = [owner for owner, holding in self._holdings if holding.versions() and self._is_ours(owner)]
        copies = [self._copies.get(owner, 1) for owner in owners]
        wanted = [1 + len(self._groups.targets(owner)) for owner in owners]
        protection = "none"
        if any(have > 1 for have in copies):
            full = all(have >= max(2, want) for have, want in zip(copies, wanted, strict=True))
            protection = "full" if full else "degraded"
        problem = next((self._problems[server] for server in sorted(self._problems)), "")
        return {"protection": protection, "problem": problem[:300]}

    def copies_of(self, owner: Owner) -> dict[str, int]:
        """How many copies there are of what one rank left last, and how many there are to be."""
        if not self._is_ours(owner):
            return {}
        return {"copies": self._copies.get(owner, 1), "wanted_copies": 1 + len(self._groups.targets(owner))}

    def _is_ours(self, owner: Owner) -> bool:
        return owner in self._copies

    # Copies of what is here

    def copy(
        self, owner: Owner, place: int, version: Version, sending: Sending, done: Callable[[list[Sent]], None]
    ) -> None:
        """Have the peers keep a copy of a version that is complete here; `done` once it has as many as can
        be, at once where there are no peers. It hears of what was sent."""
        self._copies = {one: n for one, n in self._copies.items() if self._holdings.get(one) is not None}
        self._copies.setdefault(owner, 1)
        targets = self._groups.targets(owner)
        now = boot_seconds()
        able = [peer for peer in targets if self._setbacks.may_try(peer, now)]
        holding = self._holdings.get(owner)
        region = None if holding is None else holding.slots[place].region
        secret = self._groups.secret_of(owner.job, owner.generation)
        if not able or holding is None or region is None or secret is None:
            self._copies[owner] = 1
            self._allowances.pop(owner, None)
            done([])
            return
        results: list[bool] = []
        sent: list[Sent] = []
        allowance = self._allowances.get(owner) or self.expect(owner, sending)

        def finished(peer: Peer, problem: str | None) -> None:
            self._note(peer, problem)
            results.append(problem is None)
            if len(results) == len(able):
                self._copies[owner] = 1 + sum(results)
                if self._allowances.get(owner) is allowance:
                    del self._allowances[owner]
                done(sent)

        header = {
            "put": owner.rank,
            "iteration": version.iteration,
            "bytes": version.bytes,
            "description_bytes": version.description_bytes,
            "capacity": region.size,
            "committed": holding.committed,
            "world_size": holding.world_size,
        }
        for peer in able:
            try:
                descriptor = region.open_to_read()
            except OSError as error:  # there are no more descriptors
                finished(peer, str(error))
                continue
            copying = calls.Copying(owner, secret, header, version, sending, allowance)

            send = partial(calls.send, peer, copying, self._links, self._check_lease, descriptor)
            self._in_thread(partial(_add, sent, send), partial(finished, peer), partial(os.close, descriptor))

    def expect(self, owner: Owner, sending: Sending) -> Allowance:
        """A version of that rank is to be copied once its checksums are known: from now on it may be allowed
        to."""
        self._allowances[owner] = Allowance(sending.pause_seconds)
        return self._allowances[owner]

    def allow(self, owner: Owner, size: int, within_seconds: float | None, takes_seconds: float) -> None:
        """That rank's copies may be sent now: so many bytes within so many seconds."""
        allowance = self._allowances.get(owner)
        if allowance is not None:
            allowance.allow(size, within_seconds, takes_seconds)

    def lift(self, owner: Owner) -> None:
        """Nobody says any more when that rank's copies may be sent."""
        allowance = self._allowances.get(owner)
        if allowance is not None:
            allowance.lift()

    def _note(self, peer: Peer, problem: str | None) -> None:
        if problem is None:
            self._setbacks.went_well(peer)
            self._problems.pop(peer.server, None)
            return
        self._setbacks.went_wrong(peer, boot_seconds())
        self._problems[peer.server] = f"server {peer.server} keeps no copy: {problem}"
        logger.warning("%s", self._problems[peer.server])

    def _in_thread(
        self,
        work: Callable[[], None],
        then: Callable[[str | None], None],
        finally_: Callable[[], None] = lambda: None,
    ) -> None:
        """Do something that waits, then go on in the store's own thread with what went wrong, or None."""

        def run() -> None:
            problem: str | None = None
            try:
                work()
            except (OSError, ValueError, RefusedError, wire.WireError) as error:
                problem = str(error) or type(error).__name__
            finally:
                finally_()
            self._later(lambda: then(problem))

        try:
            threading.Thread(target=run, name="peer", daemon=True).start()
        except RuntimeError as error:  # there are too many threads on this server
            finally_()
            problem = str(error)
            self._later(lambda: then(problem))

    def _in_own_thread(self, work: Callable[[], Found]) -> Found:
        """From another thread: have something done by the store's own. Raises what that raises."""
        answer: Future[Found] = Future()

        def run() -> None:
            if not answer.set_running_or_notify_cancel():
                return
            try:
                answer.set_result(work())
            except (OSError, ValueError, RefusedError, wire.WireError) as error:
                # Raised where it was asked for.
                answer.set_exception(error)

        self._later(run)
        try:
            return answer.result(_OWN_THREAD_SECONDS)
        finally:
            answer.cancel()

    # What a rank reads that is not here

    def find(self, owner: Owner, then: Callable[[Elsewhere], None]) -> None:
        """What others have of a shard: by iteration, where it lies. The nearest is asked first."""
        sources = self._groups.sources(owner)
        secret = self._groups.secret_of(owner.job, owner.generation)
        found: Elsewhere = {}
        if not sources or secret is None:
            then(found)
            return
        waiting = self._asking.setdefault(owner, [])
        if len(waiting) >= MOST_WAITING:
            then(found)
            return
        waiting.append(then)
        if len(waiting) > 1:
            return  # they are being asked

        def ask() -> None:
            for peer in sources:
                try:
                    for size in calls.versions(peer, owner, secret, self._check_lease):
                        found.setdefault(size.iteration, (size, peer))
                except (OSError, wire.WireError) as error:
                    logger.warning("server %s does not say what it has: %s", peer.server, error)

        def answered(_problem: str | None) -> None:
            for one in self._asking.pop(owner):
                one(found.copy())

        self._in_thread(ask, answered)

    def fetch(
        self, owner: Owner, size: ShardSize, nearest: Peer, then: Callable[[Slot | None, str], None]
    ) -> None:
        """Bring one version here; `then` gets its slot, or why it has not come."""
        secret = self._groups.secret_of(owner.job, owner.generation)
        others = [peer for peer in self._groups.sources(owner) if peer != nearest]
        try:
            place, region = self._holdings.begin_fetch(owner, size.world_size, size.bytes)
        except RefusedError as error:
            then(None, str(error))
            return
        try:
            descriptor = os.dup(region.descriptor)
        except OSError as error:
            self._holdings.end_fetch(owner, place, region, None)
            then(None, str(error))
            return
        come: list[Version] = []

        def bring() -> None:
            problem = ""
            for peer in (nearest, *others):
                try:
                    fetching = calls.Fetching(owner, secret or "", size)
                    come.append(calls.fetch(peer, fetching, self._links, self._check_lease, descriptor))
                    return
                except (OSError, wire.WireError) as error:
                    problem = f"{problem}server {peer.server}: {error}; "
            raise PeerError(problem.removesuffix("; "))

        def brought(problem: str | None) -> None:
            try:
                self._holdings.end_fetch(owner, place, region, come[0] if come else None)
            except RefusedError as error:
                problem = str(error)
            holding = self._holdings.get(owner)
            slot = None if problem or holding is None else holding.slots[place]
            then(slot, problem or "")

        self._in_thread(bring, brought, lambda: os.close(descriptor))

    # What others ask; in the thread of each

    def _greet(self, connection: socket.socket) -> tuple[Channel, str, int]:
        self._check_lease_of_peers()
        groups = self._groups
        return peer_wire.answer(connection, groups.server, groups.secret_of, self._check_lease_of_peers)

    def _check_lease_of_peers(self) -> None:
        try:
            self._check_lease()
        except RefusedError as error:
            raise PeerError(str(error)) from error

    def _serve(self, channel: Channel, job: str, generation: int) -> None:
        for message in channel.messages(IDLE_SECONDS):
            try:
                if "put" in message:
                    self._take(channel, Owner(job, generation, wire.number(message, "put")), message)
                elif "list" in message:
                    owner = Owner(job, generation, wire.number(message, "list"))
                    channel.send({"versions": self._in_own_thread(partial(self._listed, owner))})
                elif "get" in message:
                    owner = Owner(job, generation, wire.number(message, "get"))
                    self._give(channel, owner, message)
                else:
                    raise PeerError("no request")
            except RefusedError as error:
                logger.info("what a peer asks of job %s is refused: %s", job, error)
                channel.send({"refused": str(error)})

    def _take(self, channel: Channel, owner: Owner, message: Message) -> None:
        """Receive a copy. What is not whole in the end never counts."""
        size = calls.size_of(message)
        pause_seconds, seconds = wire.amount(message, "pause_seconds"), wire.amount(message, "seconds")
        sending = Sending.bounded(pause_seconds, seconds, wire.number(message, "buffers"))
        capacity, committed = wire.number(message, "capacity"), wire.optional_number(message, "committed")
        if not size.description_bytes <= size.bytes <= capacity:
            raise RefusedError(f"{size.bytes} bytes in a slot of {capacity}")
        begun: list[tuple[int, Region]] = []

        def begin() -> int:
            if not self._groups.keeps(owner):
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
            # Before the caller hears of it: the next version may come at once.
            arrived()
            self._holdings.end_copy(owner, *begun[0], version)

        try:
            descriptor = self._in_own_thread(begin)
            try:
                way = self._links.back()
                channel.allow(calls.allowed_seconds(size.bytes, way, sending), sending.pause_seconds)
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
            self._in_own_thread(lambda: end(whole))
            channel.send({"whole": size.iteration})
        finally:
            # After `begin`, also where that came too late to be waited for.
            self._later(arrived)

    def _listed(self, owner: Owner) -> list[list[int]]:
        """What is here of a shard, for a later generation: from now on nothing of the earlier one changes."""
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

        version, descriptor = self._in_own_thread(find)
        try:
            channel.allow(FETCH_SECONDS)
            channel.send({"sending": version.bytes, "description_bytes": version.description_bytes})
            calls.send_version(channel, descriptor, version, self._links.to(calls.rack_of(message)))
        finally:
            os.close(descriptor)


def _add(sent: list[Sent], send: Callable[[], Sent]) -> None:
    sent.append(send())
