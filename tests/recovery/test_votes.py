"""All ranks keep step: whenever they die, a version that is complete on every rank remains."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recovery.costs.protection_class import lost_work_seconds
from recovery.store.client import Copied, Standing
from recovery.traffic.modes import TrafficMode
from workers.runtime.state.copy_traffic import CopyTraffic
from workers.runtime.state.durable_schedule import DurableSchedule
from workers.runtime.state.memory_points import MemoryPoints, Vote, Votes
from workers.runtime.state.shards import STATE_FORMAT, Shard


class UnreliableRooms:
    """Two slots of a store that is randomly slow, full or away for a while."""

    def __init__(self, chance: random.Random, trouble: float) -> None:
        self._chance = chance
        self._trouble = trouble
        self.slots: list[int | None] = [None, None]
        self._waiting: tuple[int, int] | None = None
        #: The other server is away: no copy is made.
        self.alone = False
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

    def copied(self) -> Copied | None:
        return None

    def allow(self, size: int, within_seconds: float | None, takes_seconds: float) -> None:
        pass

    def standing(self, iteration: int) -> Standing:
        if self._waiting is not None and self._waiting[1] == iteration:
            return Standing.WAITED_FOR
        return Standing.SAFE if self.holds(iteration) and not self.alone else Standing.LACKING

    def ask_for_room(self, size: int, committed: int | None) -> None:
        self._room = self._chance.random() > self._trouble

    def write(
        self,
        iteration: int,
        buffers: Iterable[memoryview | bytes],
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


def exchanged(votes: Sequence[Vote]) -> Votes:
    """Return the result of an iteration's exchange of votes."""
    return Votes(
        all(vote.ready for vote in votes), any(vote.spoiled for vote in votes),
        all(vote.safe for vote in votes), any(vote.lacking for vote in votes),
        any(vote.busy for vote in votes),
    )  # fmt: skip


@given(
    seed=st.integers(0, 2**32),
    ranks=st.integers(1, 4),
    trouble=st.sampled_from([0.0, 0.2, 0.5]),
    iterations=st.integers(5, 40),
)
def test_a_complete_version_always_remains_on_all_ranks(
    seed: int, ranks: int, trouble: float, iterations: int
) -> None:
    chance = random.Random(seed)
    rooms = [UnreliableRooms(chance, trouble) for _ in range(ranks)]
    points = [MemoryPoints(room, 1.0) for room in rooms]
    newest = 0
    for iteration in range(1, iterations + 1):
        votes = [point.vote() for point in points]
        common = exchanged(votes)
        # Any rank may be ahead of the others when it dies.
        for rank in chance.sample(range(ranks), ranks):
            points[rank].keep(common, lambda: shard_of(iteration))  # noqa: B023
            rooms[rank].step()
            whole = set.intersection(*({held for held in room.slots if held} for room in rooms))
            best = max(whole, default=0)
            assert best >= newest, "what was whole everywhere stays until something newer is"
            newest = best
    if trouble == 0.0:
        assert newest >= iterations - 2, "every iteration but the one under way and the first"


@pytest.mark.parametrize(("asked_every", "apart"), [(None, 49), (10, 10)])
def test_writing_takes_its_share_unless_the_owner_asks_for_more(asked_every: int | None, apart: int) -> None:
    """Iterations of 1 s, points that take as long to write, and 2 % of the time for them."""
    now, iteration, points = 0.0, 0, []
    rooms = UnreliableRooms(random.Random(0), 0.0)
    traffic = CopyTraffic(
        rooms, mode=TrafficMode.GEMINI, share=0.02, failures_per_second=0.0, durable_seconds=60.0,
        most_every=asked_every, now=lambda: now, tell=lambda _fields: None,
    )  # fmt: skip

    def shard() -> Shard:
        nonlocal now
        now += 1.0
        points.append(iteration)
        return shard_of(iteration)

    memory_points = MemoryPoints(rooms, 0.02, traffic, lambda: now)
    while iteration < 400:
        iteration += 1
        traffic.begins()
        now += 1.0
        memory_points.keep(exchanged([memory_points.vote()]), shard)
        traffic.ends()
        rooms.step()
    assert {after - before for before, after in pairwise(points[-4:])} == {apart}


class Disks:
    """Storage of durable states: each rank's shard is stored within ``longest_seconds``."""

    def __init__(self, chance: random.Random, longest_seconds: float) -> None:
        self._chance = chance
        self._longest_seconds = longest_seconds
        #: Of the state being stored: when it was captured, and when each rank's shard is stored.
        self._captured_at = 0.0
        self._stored_at: list[float] = []
        self.newest_at = 0.0
        self.states = 0

    def capture(self, now: float, ranks: int) -> None:
        assert not self.busy(now), "no state is begun before the last one is stored"
        self._captured_at = now
        self._stored_at = [now + self._chance.uniform(0.0, self._longest_seconds) for _ in range(ranks)]
        self.states += 1

    def busy(self, now: float, rank: int | None = None) -> bool:
        asked = self._stored_at if rank is None or not self._stored_at else [self._stored_at[rank]]
        return any(now < at for at in asked)

    def newest(self, now: float) -> float:
        if self._stored_at and not self.busy(now):
            self.newest_at = self._captured_at
        return self.newest_at


@given(
    seed=st.integers(0, 2**32), ranks=st.integers(1, 3), trouble=st.sampled_from([0.0, 0.2, 0.6]),
    safe_seconds=st.floats(2.0, 30.0), longest_storing=st.floats(0.0, 20.0), longest=st.floats(0.05, 3.0),
    away=st.lists(st.booleans(), min_size=12, max_size=12),
)  # fmt: skip
def test_losing_a_server_never_costs_more_than_promised(
    seed: int, ranks: int, trouble: float, safe_seconds: float, longest_storing: float, longest: float,
    away: list[bool],
) -> None:  # fmt: skip
    """At every moment one server may be lost. A durable state remains, or the newest copied one in memory;
    while ``away`` no copies are made."""
    chance = random.Random(seed)
    rooms = [UnreliableRooms(chance, trouble) for _ in range(ranks)]
    points, disks = [MemoryPoints(room, 1.0) for room in rooms], Disks(chance, longest_storing)
    schedule = DurableSchedule(90.0, safe_seconds, 0.0, from_memory=False)
    bound = lost_work_seconds(safe_seconds, longest_storing, longest)
    begun: dict[int, float] = {}  # when the state of each version was taken
    copied: set[int] = set()
    now, started = 0.0, None
    for iteration in range(1, 241):
        alone = away[iteration // 20 % len(away)]
        for room in rooms:
            room.alone = alone
        due = schedule.due(now)
        middle = now + chance.uniform(0.0, longest / 2)
        votes = [
            Vote(**{**vars_of(point.vote()), "busy": disks.busy(middle, rank)})
            for rank, point in enumerate(points)
        ]
        now = middle + chance.uniform(0.0, longest / 2)
        newest_safe = max([disks.newest(now), *(begun[version] for version in copied)])
        assert now - newest_safe <= bound + 1e-9
        common = exchanged(votes)
        schedule.heard(common, None if started is None else begun[started])
        if due:
            schedule.captured(now)
            disks.capture(now, ranks)
        kept_by_rank = [point.keep(common, lambda: shard_of(iteration)) for point in points]  # noqa: B023
        if all(kept_by_rank):
            started, begun[iteration] = iteration, now
        for room in rooms:
            room.step()
        whole = set.intersection(*({held for held in room.slots if held} for room in rooms))
        copied = {max(copied | whole)} if not alone and copied | whole else copied
    if trouble == 0.0 and not any(away) and longest < safe_seconds / 8:
        assert disks.states <= 1 + now / 90.0, "where copies work, durable states come at their own period"


def vars_of(vote: Vote) -> dict[str, bool]:
    return {"ready": vote.ready, "spoiled": vote.spoiled, "safe": vote.safe, "lacking": vote.lacking}


def test_a_state_from_memory_is_stored_at_once_if_promised() -> None:
    """The previous durable state is as old as it was at the loss."""
    assert DurableSchedule(60.0, 15.0, 100.0, from_memory=True).due(100.0)
    assert not DurableSchedule(60.0, 15.0, 100.0, from_memory=False).due(100.0)
    assert not DurableSchedule(60.0, None, 100.0, from_memory=True).due(100.0)


def test_a_missing_copy_keeps_older_versions_from_counting() -> None:
    """The lost server may have held them."""
    schedule = DurableSchedule(600.0, 15.0, 0.0, from_memory=False)
    schedule.heard(Votes(all_safe=True), 99.0)
    assert not schedule.due(100.0)
    schedule.heard(Votes(any_lacking=True), 99.0)
    assert schedule.due(100.0)
    schedule.captured(100.0)
    assert not schedule.due(130.0), "parts of it are not stored yet"
    schedule.heard(Votes(any_lacking=True), 99.0)
    assert not schedule.due(114.0)
    assert schedule.due(115.0)
