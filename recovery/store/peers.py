"""Requests of a store to those of other servers: keep copies, and fetch what a rank reads here.

The store's own thread owns the contents. Network waits run in separate threads, each for as long as it makes
progress.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial

from recovery.store import calls, wire
from recovery.store.allowances import Allowance, Sending
from recovery.store.callers import Callers
from recovery.store.calls import Sent
from recovery.store.groups import Groups
from recovery.store.holdings import Holdings, Owner, RefusedError, Slot, Version
from recovery.store.links import StoreLinks
from recovery.store.memory import take_memory
from recovery.store.peer_requests import PeerRequests
from recovery.store.peer_wire import Peer, PeerError, ShardSize
from recovery.store.setbacks import Setbacks
from recovery.store.threads import Threads
from recovery.store.wire import Message, boot_seconds

logger = logging.getLogger(__name__)

#: Most ranks that wait for the same answer.
MOST_WAITING = 8

#: Size of a shard and the peer that has it, by iteration.
Elsewhere = dict[int, tuple[ShardSize, Peer]]


class Peers:
    """The store's communication with other stores. Its methods run in the store's own thread."""

    def __init__(
        self,
        holdings: Holdings,
        later: Callable[[Callable[[], None]], None],
        check_lease: Callable[[], None],
        links: StoreLinks,
    ) -> None:
        """Args: later: runs something in the store's own thread. check_lease: raises RefusedError."""
        self._holdings = holdings
        self._links = links
        #: Of the copies in progress.
        self._allowances: dict[Owner, Allowance] = {}
        self._threads = Threads(later)
        self._check_lease = check_lease
        self._groups = Groups(None, {})
        self._callers: Callers | None = None
        self._requests = PeerRequests(holdings, self._threads, check_lease, links, lambda: self._groups)
        #: Callbacks that wait for the versions that peers have of a shard.
        self._asking: dict[Owner, list[Callable[[Elsewhere], None]]] = {}
        self._setbacks = Setbacks()
        #: The servers that have the latest copied version of each rank here.
        self._copies: dict[Owner, frozenset[Peer]] = {}
        #: Why copies fail, by server; "" for this server.
        self._problems: dict[str, str] = {}

    # Called for the agent

    def obey(self, listen: tuple[str, int] | None, groups: Groups) -> None:
        """Listen on this address and serve only these generations."""
        held = {(owner.job, owner.generation) for owner, _holding in self._holdings}
        self._groups = groups.with_secrets_of(self._groups, held)
        # Forget the problems of peers that no longer keep copies.
        wanted = {peer.server for peer in groups.all_targets()}
        self._problems = {one: text for one, text in self._problems.items() if one in wanted or not one}
        if self._callers is not None and self._callers.where != listen:
            self._callers.close()
            self._callers = None
        if self._callers is None and listen is not None:
            try:
                self._callers = Callers(*listen, self._requests.greet, self._requests.serve)
                self._problems.pop("", None)
            except OSError as error:
                problem = f"this server's store cannot listen on port {listen[1]}: {error.strerror}"
                if self._problems.get("") != problem:
                    logger.warning("%s", problem)
                self._problems[""] = problem

    def close(self) -> None:
        """Stop listening."""
        if self._callers is not None:
            self._callers.close()

    def may_have(self, owner: Owner) -> bool:
        """Whether a later generation reads that rank's shard here and peers may have it."""
        return bool(self._groups.sources(owner))

    def report(self) -> Message:
        """Report how well the workers' state here is protected, and what prevents more protection."""
        owners = [owner for owner, holding in self._holdings if holding.versions() and self._is_ours(owner)]
        copies = [self.copies_of(owner) for owner in owners]
        protection = "none"
        if any(one["copies"] > 1 for one in copies):
            full = all(one["copies"] >= max(2, one["wanted_copies"]) for one in copies)
            protection = "full" if full else "degraded"
        problem = next((self._problems[server] for server in sorted(self._problems)), "")
        return {"protection": protection, "problem": problem[:300]}

    def copies_of(self, owner: Owner) -> dict[str, int]:
        """Return the number of copies of a rank's latest version, including this server's, and the number
        wanted. Copies on servers that no longer keep any do not count."""
        if not self._is_ours(owner):
            return {}
        targets = self._groups.targets(owner)
        return {
            "copies": 1 + len(self._copies[owner].intersection(targets)),
            "wanted_copies": 1 + len(targets),
        }

    def _is_ours(self, owner: Owner) -> bool:
        return owner in self._copies

    # Copies to peers

    def copy(
        self, owner: Owner, place: int, version: Version, sending: Sending, done: Callable[[list[Sent]], None]
    ) -> None:
        """Copy a complete version to its peers.

        `done` receives what was sent once all peers have finished or failed; at once without peers."""
        self._copies = {one: at for one, at in self._copies.items() if self._holdings.get(one) is not None}
        self._copies.setdefault(owner, frozenset())
        targets = self._groups.targets(owner)
        now = boot_seconds()
        able = [peer for peer in targets if self._setbacks.may_try(peer, now)]
        holding = self._holdings.get(owner)
        region = None if holding is None else holding.slots[place].region
        secret = self._groups.secret_of(owner.job, owner.generation)
        if not able or holding is None or region is None or secret is None:
            self._copies[owner] = frozenset()
            self._allowances.pop(owner, None)
            done([])
            return
        waited_for = set(able)
        copied: set[Peer] = set()
        sent: list[Sent] = []
        allowance = self._allowances.get(owner) or self.expect(owner, sending)

        def finished(peer: Peer, problem: str | None) -> None:
            self._note(peer, problem)
            waited_for.discard(peer)
            if problem is None:
                copied.add(peer)
            if not waited_for:
                self._copies[owner] = frozenset(copied)
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
            except OSError as error:  # no descriptors are left
                finished(peer, str(error))
                continue
            copying = calls.Copying(owner, secret, header, version, sending, allowance)

            send = partial(calls.send, peer, copying, self._links, self._check_lease, descriptor)
            self._threads.start(
                partial(_add, sent, send), partial(finished, peer), partial(os.close, descriptor)
            )

    def expect(self, owner: Owner, sending: Sending) -> Allowance:
        """Create the allowance of a version that is to be copied once its checksums are known."""
        self._allowances[owner] = Allowance(sending)
        return self._allowances[owner]

    def allow(self, owner: Owner, size: int, within_seconds: float | None, takes_seconds: float) -> None:
        """Let that rank's copies be sent: `size` bytes within `within_seconds`."""
        allowance = self._allowances.get(owner)
        if allowance is not None:
            allowance.allow(size, within_seconds, takes_seconds)

    def lift(self, owner: Owner) -> None:
        """Send that rank's copies without further allowances."""
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

    # Fetches from peers

    def find(self, owner: Owner, then: Callable[[Elsewhere], None]) -> None:
        """Find the versions that peers have of a shard, by iteration. The nearest peer is asked first."""
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
            return  # the request is in progress

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

        self._threads.start(ask, answered)

    def fetch(
        self,
        owner: Owner,
        size: ShardSize,
        nearest: Peer,
        then: Callable[[Slot | None, str], None],
        goes_on: Callable[[], None],
    ) -> None:
        """Fetch one version; `then` receives its slot, or the reason of a failure.

        `goes_on` is called meanwhile in another thread."""
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
            for _taken in take_memory(descriptor, size.bytes):
                goes_on()
            problem = ""
            for peer in (nearest, *others):
                try:
                    fetching = calls.Fetching(owner, secret or "", size, goes_on)
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

        self._threads.start(bring, brought, lambda: os.close(descriptor))


def _add(sent: list[Sent], send: Callable[[], Sent]) -> None:
    sent.append(send())
