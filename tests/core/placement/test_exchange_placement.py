"""On servers of one rack, blocks of GPUs are the cheapest places for an all-to-all, as in MoESys (7.4);
experts need no placement rule of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from moe.moesys.all_to_all import LinkRates
from moe.moesys.placement_score import FreeServer, StepTraffic, score_placement
from scheduling.core.decide import replan
from scheduling.core.question.snapshot import JobSnapshot
from tests.core.building import job, snapshot
from tests.plugins.examples import examples

#: Bandwidth of a GPU to others of its server, and of a server's network interface, which its GPUs share.
WITHIN_BYTES_PER_SECOND, BETWEEN_BYTES_PER_SECOND = 100e9, 12.5e9
ROW_BYTES = 1e6
SERVER, SERVERS = 8, 4
TRAFFIC = StepTraffic(layers=4, tokens_per_rank=1024, experts_per_token=2, hidden=1024, dense=1e6)


def shapes(workers: int, free: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Return all distributions of workers over the servers' free GPUs."""
    if not free:
        if workers == 0:
            yield ()
        return
    for here in range(min(workers, free[0]) + 1):
        for rest in shapes(workers - here, free[1:]):
            yield (here, *rest)


def all_to_all_seconds(shape: Sequence[int]) -> float:
    """Return the time of an all-to-all in which each worker sends equally many rows to each (Lina 1.3)."""
    total = sum(shape)
    return max(
        max(
            ROW_BYTES * (workers - 1) / total / WITHIN_BYTES_PER_SECOND,
            workers * ROW_BYTES * (total - workers) / total / BETWEEN_BYTES_PER_SECOND,
        )
        for workers in shape
        if workers
    )


def step_score(shape: Sequence[int]) -> float:
    """Return the seconds of a step by the score of MoESys: all-to-alls, and an all-reduce."""
    parts = [(FreeServer(str(server), workers), workers) for server, workers in enumerate(shape) if workers]
    return score_placement(parts, TRAFFIC, LinkRates()).score


@hypothesis_settings(max_examples=examples(0.3))
@given(seed=st.integers(0, 2**32 - 1), size=st.sampled_from([2, 4, 8]))
def test_a_job_gets_the_place_with_the_cheapest_exchange(seed: int, size: int) -> None:
    rng = Random(seed)
    running: list[JobSnapshot] = []
    occupied: set[int] = set()
    for number in range(rng.randrange(10)):
        gpus = rng.choice([1, 2, 4])
        first = rng.randrange(SERVER * SERVERS // gpus) * gpus
        block = tuple(range(first, first + gpus))
        if occupied.isdisjoint(block):
            occupied.update(block)
            running.append(
                job(
                    f"running{number}", 100.0, measured={gpus: 1.0}, newcomer=False, gpus_now=gpus,
                    placement=block,
                )
            )  # fmt: skip
    question = snapshot((SERVER,) * SERVERS, *running, job("newcomer", 100.0, measured={size: 1.0}))
    places = replan(question).placements
    if "newcomer" not in places or not places["newcomer"]:
        return
    used = {address for item in running for address in places.get(item.id, item.placement)}
    free = [
        sum(address not in used for address in range(SERVER * server, SERVER * (server + 1)))
        for server in range(SERVERS)
    ]
    chosen = [sum(address // SERVER == server for address in places["newcomer"]) for server in range(SERVERS)]
    assert sum(chosen) == size
    assert step_score(chosen) == min(map(step_score, shapes(size, free)))
    assert all_to_all_seconds(chosen) == min(map(all_to_all_seconds, shapes(size, free)))


def test_whole_servers_are_taken_within_a_rack() -> None:
    question = snapshot((SERVER,) * SERVERS, job("newcomer", 100.0, measured={2 * SERVER: 1.0}))
    servers = [replace(server, rack=rack) for server, rack in zip(question.servers, "abaa", strict=True)]
    places = replan(replace(question, servers=tuple(servers))).placements["newcomer"]
    assert {address // SERVER for address in places} == {2, 3}
