"""All ranks keep step: whenever they die, a version is left that is whole on every one of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.runtime.state.memory_points import MemoryPoints, Votes
from workers.runtime.state.shards import STATE_FORMAT, Shard


class UnreliableRooms:
    """Two slots of a store that is slow, full or away for a while, as chance wants it."""

    def __init__(self, chance: random.Random, trouble: float) -> None:
        self._chance = chance
        self._trouble = trouble
        self.slots: list[int | None] = [None, None]
        self._waiting: tuple[int, int] | None = None
        self._room = False

    def step(self) -> None:
        """Time passes."""
        if self._waiting is not None and self._chance.random() > self._trouble:
            place, iteration = self._waiting
            self.slots[place], self._waiting = iteration, None

    def idle(self) -> bool:
        return self._waiting is None and self._chance.random() > self._trouble / 2

    def fits(self, size: int, committed: int | None) -> bool:
        return self._room

    def holds(self, iteration: int) -> bool:
        return iteration in self.slots

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        return condition()

    def ask_for_room(self, size: int, committed: int | None) -> None:
        self._room = self._chance.random() > self._trouble

    def write(
        self,
        iteration: int,
        buffers: Sequence[memoryview | bytes],
        *,
        size: int,
        description_bytes: int,
        committed: int | None,
        sending: object = None,
    ) -> bool:
        if not self._room:
            return False
        if self._chance.random() < self._trouble / 4:
            self._room = False
            return False
        place = next(place for place, held in enumerate(self.slots) if committed is None or held != committed)
        self.slots[place] = None
        self._waiting = (place, iteration)
        return True


def shard_of(iteration: int) -> Shard:
    description: dict[str, Any] = {
        "format": STATE_FORMAT, "generation": 1, "iteration": iteration, "shard": 0, "world_size": 1,
        "layout_digest": "", "slices": [], "own": [],
    }  # fmt: skip
    return Shard(description, [torch.zeros(1)])


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    ranks=st.integers(1, 4),
    trouble=st.sampled_from([0.0, 0.2, 0.5]),
    iterations=st.integers(5, 40),
)
def test_a_version_stays_whole_on_all_ranks(seed: int, ranks: int, trouble: float, iterations: int) -> None:
    chance = random.Random(seed)
    rooms = [UnreliableRooms(chance, trouble) for _ in range(ranks)]
    points = [MemoryPoints(room, 1.0) for room in rooms]
    newest = 0
    for iteration in range(1, iterations + 1):
        votes = [point.vote() for point in points]
        told = Votes(all(vote.ready for vote in votes), any(vote.spoiled for vote in votes))
        # Any of them may be ahead of the others when they die.
        for rank in chance.sample(range(ranks), ranks):
            points[rank].keep(told, lambda: shard_of(iteration))  # noqa: B023
            rooms[rank].step()
            whole = set.intersection(*({held for held in room.slots if held} for room in rooms))
            best = max(whole, default=0)
            assert best >= newest, "what was whole everywhere stays until something newer is"
            newest = best
    if trouble == 0.0:
        assert newest >= iterations - 2, "every iteration but the one under way and the first"
