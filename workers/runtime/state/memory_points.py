"""Recovery points in memory: each rank's shard goes into the store of its node, and the newest that is whole
on all ranks stays.

All ranks keep step through the one small all-reduce of an iteration. They write a version together, and only
once every rank's store has the one before whole: that one is committed then and is not written over. Where
one is not ready they all let an iteration pass.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Protocol

import torch
import torch.distributed as dist

from recovery.store.allowances import Sending
from recovery.store.client import Standing, StoreClient, StoredShard, StoreError
from workers.runtime.state.copy_traffic import CopyTraffic
from workers.runtime.state.shards import Shard, ShardError, describe_as_bytes, read_description

_log = logging.getLogger(__name__)

#: A slot is larger than what is written first: histories grow.
_SPARE_BYTES = 1 << 20
#: How long a start waits for the store of its node to answer, or to say that it goes on: it may have to read
#: all that it holds, or to fetch a shard from another server.
ANSWER_SECONDS = 60.0


@dataclass(frozen=True)
class Vote:
    """What a rank tells all others at an iteration.

    Attributes:
        ready: it can write the coming version. spoiled: the version that all wrote last is not whole here.
        safe: that version is whole here, with all its copies on other servers. lacking: it is not, and will
        not be. busy: its shard of a durable state is still being stored.
    """

    ready: bool = False
    spoiled: bool = False
    safe: bool = False
    lacking: bool = False
    busy: bool = False


@dataclass(frozen=True)
class Votes:
    """What all ranks have told."""

    all_ready: bool = False
    any_spoiled: bool = False
    all_safe: bool = False
    any_lacking: bool = False
    any_busy: bool = False


class Rooms(Protocol):
    """The part of a store's client that writing needs."""

    def idle(self) -> bool: ...

    def fits(self, size: int, committed: int | None) -> bool: ...

    def holds(self, iteration: int) -> bool: ...

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool: ...

    def standing(self, iteration: int) -> Standing: ...

    def ask_for_room(self, size: int, committed: int | None) -> None: ...

    def write(
        self,
        iteration: int,
        buffers: Iterable[memoryview | bytes],
        *,
        size: int,
        description_bytes: int,
        committed: int | None,
        sending: Sending | None = None,
    ) -> bool: ...


class MemoryPoints:
    """One rank's part in its generation's recovery points in memory."""

    def __init__(
        self,
        store: Rooms,
        share: float,
        traffic: CopyTraffic | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`share`: of the time that passes, at most so much goes into writing, unless the owner asks for
        more. `traffic`: says how often points are worth their copies, and how these are sent."""
        self._store = store
        self._now = now
        self._traffic = traffic
        self._share = share
        self._started: int | None = None
        #: When the state of that version was as it is kept.
        self.started_at: float | None = None
        self._committed: int | None = None
        self._needed = 0
        self._cost_seconds = 0.0
        self._written_at = 0.0

    def vote(self) -> Vote:
        """What this rank has to say. Asks again for room where it was refused."""
        if self._traffic is not None:
            self._traffic.votes()
        standing = None if self._started is None else self._store.standing(self._started)
        told = Vote(safe=standing is Standing.SAFE, lacking=standing is Standing.LACKING)
        if not self._store.idle():
            return told
        if self._needed and not self._store.fits(self._needed, self._committed):
            self._ask()
            return told
        pause_seconds = self._cost_seconds * (1 - self._share) / self._share
        ready = self._now() - self._written_at >= pause_seconds
        if self._traffic is not None:
            ready = self._traffic.due() and (ready or self._traffic.overdue())
        spoiled = self._started is not None and not self._store.holds(self._started)
        return replace(told, ready=ready, spoiled=spoiled)

    def keep(self, votes: Votes, shard: Callable[[], Shard]) -> bool:
        """After an iteration: write this rank's shard if all ranks write theirs. Returns whether they do.

        Args:
            shard: makes the shard; it may share memory with the live state, which does not change meanwhile.
        """
        if not votes.all_ready:
            return False
        if not votes.any_spoiled and self._started is not None:
            self._committed = self._started
        begun = self.started_at = self._now()
        made = shard()
        description = describe_as_bytes(made)
        self._started = int(made.description["iteration"])
        self._needed = len(description) + made.bytes
        written = self._store.write(
            self._started,
            # What comes from a device goes through sub-buffers that are filled again.
            chain([description], made.pieces()) if made.left else [description, *made.pieces()],
            size=self._needed,
            description_bytes=len(description),
            committed=self._committed,
            sending=None if self._traffic is None else self._traffic.sending(),
        )
        if not written:
            self._ask()
        self._written_at = self._now()
        self._cost_seconds = (self._cost_seconds + self._written_at - begun) / 2
        if self._traffic is not None and written:
            self._traffic.written(self._needed, self._cost_seconds)
        return True

    def keep_last(self, shard: Shard, seconds: float) -> bool:
        """After the last iteration, at which all ranks have stopped: write this rank's shard, once the store
        has done with the one before and has room for it. Returns whether it is written; the store completes
        it.

        Args:
            seconds: to wait at most. Where it is not written, what was committed stays.
        """
        description = describe_as_bytes(shard)
        iteration = int(shard.description["iteration"])
        size = len(description) + shard.bytes

        def there_is_room() -> bool:
            return self._store.idle() and self._store.fits(size, self._committed)

        if self._traffic is not None:
            self._traffic.stops()
        if iteration == self._started:
            return True
        if not self._store.wait(there_is_room, seconds):
            return False
        return self._store.write(
            iteration,
            [description, *shard.pieces()],
            size=size,
            description_bytes=len(description),
            committed=self._committed,
        )

    def _ask(self) -> None:
        self._store.ask_for_room(self._needed * 5 // 4 + _SPARE_BYTES, self._committed)


class ShardInStore:
    """A shard of an earlier generation in the store of this rank's node."""

    def __init__(self, stored: StoredShard) -> None:
        """Raises ShardError."""
        self._stored = stored
        self.description: Mapping[str, Any] = read_description(stored.description)

    def read_into(self, buffer: memoryview) -> None:
        """Fill the buffer with the next bytes. Raises OSError."""
        self._stored.read_into(buffer)

    def finish(self) -> None:
        """The store has compared its checksums before."""

    def close(self) -> None:
        """Let go of the memory."""
        self._stored.close()


def newest_common(held: set[int] | None) -> int | None:
    """The newest iteration that all ranks hold; None where there is none. All ranks call this together.

    Args:
        held: what this rank holds; None for one that is to read nothing.
    """
    bound = torch.iinfo(torch.int64).max
    while True:
        mine = bound if held is None else max((one for one in held if one <= bound), default=-1)
        newest = torch.tensor([mine])
        dist.all_reduce(newest, op=dist.ReduceOp.MIN)
        bound = int(newest)
        lacking = torch.tensor([int(held is not None and bound not in held)])
        dist.all_reduce(lacking, op=dist.ReduceOp.MAX)
        if bound < 0:
            return None
        if not int(lacking):
            return bound


def open_from_memory(
    store: StoreClient | None, numbers: Sequence[int], generation: int
) -> dict[int, ShardInStore]:
    """The shards that this rank reads, all ranks' of the newest iteration that is whole everywhere. All ranks
    call this together.

    Raises:
        ShardError: there is no such iteration.
    """
    opened: dict[int, ShardInStore] = {}
    problem = "no recovery point in memory is whole on all ranks"
    iteration = newest_common(_held(store, numbers, generation) if numbers else None)
    fine = iteration is not None
    if iteration is not None:
        try:
            for number in numbers:
                assert store is not None
                opened[number] = ShardInStore(store.open(number, generation, iteration, ANSWER_SECONDS))
        except (StoreError, ShardError) as error:
            fine, problem = False, str(error)
    failed = torch.tensor([int(not fine)])
    dist.all_reduce(failed, op=dist.ReduceOp.MAX)
    if int(failed):
        for shard in opened.values():
            shard.close()
        raise ShardError(problem)
    return opened


def _held(store: StoreClient | None, numbers: Sequence[int], generation: int) -> set[int]:
    if store is None:
        return set()
    try:
        return set.intersection(*(store.find(number, generation, ANSWER_SECONDS) for number in numbers))
    except StoreError as error:
        _log.warning("the in-memory store has nothing: %s", error)
        return set()
