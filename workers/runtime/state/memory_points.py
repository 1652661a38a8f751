"""Recovery points in memory: each rank writes its shard to its node's store, which keeps the newest version
that is complete on all ranks.

All ranks synchronise through the small all-reduce of an iteration. They write a version together, and only
once every rank's store has the previous version complete. That one is then committed and is not overwritten.
If a rank is not ready, all skip the iteration.
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

#: Extra room in a slot, as histories grow.
_SPARE_BYTES = 1 << 20
#: How long a start waits for its node's store to answer or to report progress: the store may have to read all
#: of its content, or to fetch a shard from another server.
ANSWER_SECONDS = 60.0


@dataclass(frozen=True)
class Vote:
    """A rank's vote at an iteration.

    Attributes:
        ready: it can write the next version.
        spoiled: the version that all ranks wrote last is incomplete on this rank.
        safe: that version is complete on this rank, with all its copies on other servers.
        lacking: that version lacks copies and will not get them.
        busy: this rank's shard of a durable state is still being stored.
    """

    ready: bool = False
    spoiled: bool = False
    safe: bool = False
    lacking: bool = False
    busy: bool = False


@dataclass(frozen=True)
class Votes:
    """The votes of all ranks, combined."""

    all_ready: bool = False
    any_spoiled: bool = False
    all_safe: bool = False
    any_lacking: bool = False
    any_busy: bool = False


class Rooms(Protocol):
    """The part of a store's client that is needed for writing."""

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
        """Begin without a version.

        Args:
            share: maximum share of the time spent on writing, unless the owner asks for more points.
            traffic: decides when points are worth their copies, and how these are sent; None: no copies.
        """
        self._store = store
        self._now = now
        self._traffic = traffic
        self._share = share
        self._started: int | None = None
        #: Time of that version's state.
        self.started_at: float | None = None
        self._committed: int | None = None
        self._needed = 0
        self._cost_seconds = 0.0
        self._written_at = 0.0

    def vote(self) -> Vote:
        """Return this rank's vote. Ask again for room if that was refused."""
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
        """Write this rank's shard after an iteration, if all ranks write theirs; return whether they do.

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
            # Values on a device come lazily through reused sub-buffers.
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
        """Write this rank's shard after the last iteration, at which all ranks have stopped, once the store
        has completed the previous one and has room. Return whether it is written; the store completes it.

        Args:
            seconds: maximum wait. If the shard is not written, the committed version stays.
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
        """Read the description. Raise ShardError if it is invalid."""
        self._stored = stored
        self.description: Mapping[str, Any] = read_description(stored.description)

    def read_into(self, buffer: memoryview) -> None:
        """Fill the buffer with the next bytes. Raises OSError."""
        self._stored.read_into(buffer)

    def finish(self) -> None:
        """Do nothing: the store has already verified the checksums."""

    def close(self) -> None:
        """Release the memory."""
        self._stored.close()


def newest_common(held: set[int] | None) -> int | None:
    """Return the newest iteration that all ranks hold; None if there is none. All ranks call this together.

    Args:
        held: iterations that this rank holds; None for a rank that reads no shard.
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
    """Open the shards that this rank reads, of the newest iteration that all ranks hold. All ranks call this
    together.

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
