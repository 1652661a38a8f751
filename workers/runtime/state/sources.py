"""Sources of a generation's state: nothing, files that the agent fetched, the old generation's memory, or the
in-memory stores of nodes.

All ranks follow rank 0's order. Each rank opens the shards that it must read. If a source fails, or the order
has changed, all ranks start over with rank 0's current order.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from recovery.store.client import StoreClient
from workers.runtime.assignment import Assignment
from workers.runtime.failures import WorkerFailureError, start_failed
from workers.runtime.goals import Goals
from workers.runtime.process_group import broadcast_bytes
from workers.runtime.state import layout
from workers.runtime.state.experts import ExpertStates
from workers.runtime.state.handover import ReceivedShard, open_handover
from workers.runtime.state.loading import LoadedState, OpenShard, ShardInMemory, agree, load_state
from workers.runtime.state.memory_points import ShardInStore, open_from_memory
from workers.runtime.state.moves import StateMoves
from workers.runtime.state.shards import ShardError, read_shard

_log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.05
_PATIENCE_SECONDS = 0.25

Start = Mapping[str, Any]


class StateSource:
    """Loads the state that the control plane names, together with the other ranks."""

    def __init__(
        self,
        assignment: Assignment,
        goals: Goals,
        box: Path,
        homes: Mapping[layout.Path, Tensor],
        experts: ExpertStates,
        moves: StateMoves,
        store: StoreClient | None,
    ) -> None:
        """Store the arguments.

        Args:
            homes: tensors into which the state is received, by path.
            experts: which ranks have which experts.
            store: this node's recovery points in memory; None if it has no store.
        """
        #: When every rank had opened its shards (monotonic clock); None before.
        self.found_at: float | None = None
        self._store = store
        self._moves = moves
        self._homes = homes
        self._experts = experts
        self._begun = False
        self._assignment = assignment
        self._goals = goals
        self._box = box
        self._leads = assignment.rank == 0

    def take(self) -> LoadedState | None:
        """Return the state to start from, empty to start from nothing; None if rank 0's goal is past `train`.

        Its content is the same on every rank, except for spread experts.

        Raises:
            WorkerFailureError: `start_failed` if the named state cannot be loaded.
        """
        while True:
            start = self._order()
            if start is None:
                return None
            if start["from"] == "nothing":
                if self._begun:
                    # The model is already overwritten in part; only new workers can begin from nothing.
                    raise WorkerFailureError("start_failed", "a state that was begun to be read broke off")
                return LoadedState({}, [])
            try:
                state = self._take_from(start)
            except ShardError as error:
                raise WorkerFailureError("start_failed", f"the state cannot be taken: {error}") from error
            if state is not None:
                return state
            self._goals.wait_for_change(_RETRY_SECONDS)

    def _order(self) -> Start | None:
        """Return rank 0's order on all ranks."""
        content = None
        if self._leads:
            start = self._goals.wait_for_start()
            content = None if start is None else json.dumps(_identity(start)).encode()
        content = broadcast_bytes(content)
        if content is None:
            return None
        found: Start = json.loads(content)
        if found.get("from") not in ("nothing", "checkpoint", "handover", "memory"):
            raise WorkerFailureError("start_failed", f"unknown start {found.get('from')!r}")
        return found

    def _take_from(self, start: Start) -> LoadedState | None:
        shards = start["shards"]
        readers = [int(shard["reader"]) for shard in shards]
        if [shard["id"] for shard in shards] != list(range(len(shards))) or not shards:
            raise ShardError("the shards of the named state are not complete")
        if not all(0 <= reader < self._assignment.world_size for reader in readers):
            raise ShardError("a shard is to be read by a rank that does not exist")
        opened: dict[int, OpenShard] = {}
        try:
            found = self._open_all(start, opened)
            if not agree(found):
                return None
            self._begun = True
            self.found_at = time.monotonic()
            return load_state(
                opened, readers, rank=self._assignment.rank, homes=self._homes, experts=self._experts
            )
        finally:
            for shard in opened.values():
                if isinstance(shard, ReceivedShard | ShardInStore):
                    shard.close()

    def _open_all(self, start: Start, opened: dict[int, OpenShard]) -> bool:
        """Open every shard that this rank reads; return False if the order has changed."""
        own = self._own_order(start)
        if own is None:
            return False
        if start["from"] == "memory":
            mine = [int(shard["id"]) for shard in start["shards"] if shard["reader"] == self._assignment.rank]
            opened.update(open_from_memory(self._store, mine, int(start["generation"])))
            return True
        for shard in start["shards"]:
            if shard["reader"] != self._assignment.rank:
                continue
            if start["from"] == "checkpoint":
                opened[shard["id"]] = self._open_file(own, shard["id"])
                continue
            received = self._open_handover(start, shard)
            if received is None:
                return False
            opened[shard["id"]] = received
        return True

    def _own_order(self, start: Start) -> Start | None:
        """Return this rank's message of the same order, which names its files; None if it has another one."""
        while True:
            own = self._goals.start
            if own is not None and _identity(own) == start:
                return own
            if own is not None or self._goals.goal != "train":
                # Older or newer than rank 0's: both will soon have the same.
                self._goals.wait_for_change(_PATIENCE_SECONDS)
                return None
            self._goals.wait_for_change(_PATIENCE_SECONDS)

    def _open_file(self, own: Start, number: int) -> ShardInMemory:
        try:
            begun = time.monotonic()
            shard = read_shard(self._box / own["files"][str(number)])
            self._moves.stored(shard.bytes, begun)
            return ShardInMemory(shard)
        except (OSError, KeyError) as error:
            raise start_failed("the checkpoint", error) from error

    def _open_handover(self, start: Start, shard: Mapping[str, Any]) -> ReceivedShard | None:
        (holder,) = shard["holders"]
        return open_handover(
            holder["address"],
            int(holder["port"]),
            secret=self._assignment.secret,
            predecessor=int(start["generation"]),
            generation=self._assignment.generation,
            still_wanted=lambda: self._wanted(start),
            pause=self._goals.wait_for_change,
            moves=self._moves,
        )

    def _wanted(self, start: Start) -> bool:
        own = self._goals.start
        return own is not None and _identity(own) == start and self._goals.goal == "train"


def _identity(start: Start) -> dict[str, Any]:
    """Return an order without the `files` that the agent added for one rank."""
    return {name: value for name, value in start.items() if name != "files"}
