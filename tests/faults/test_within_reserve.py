"""The reserve covers most schedules, so that a broken promise is conclusive; the others have all kinds of
faults."""

from __future__ import annotations

import pytest

from faults.coverage import is_covered, silences
from faults.schedule import SEVERAL_PROCESSES, Fault, Part, Target, schedule
from faults.within_reserve import within_reserve
from tests.faults.run import CHARGE
from tests.faults.scene import SERVERS

SECONDS = 30.0
SEEDS = range(1, 201)
_ON_A_SERVER = (
    Part.AGENT, Part.WORKER, Part.LAUNCHER, Part.NURSERY, Part.MEMORY_STORE, Part.CONTROL_LINK,
    Part.PEER_LINK, Part.DISK,
)  # fmt: skip
_ALONE = frozenset(Part) - {Part.CLOCK, *_ON_A_SERVER, *SEVERAL_PROCESSES}
PROCESSES = [Target(part, "any") for part in sorted(_ALONE)] + [
    Target(part, f"of {server}", server) for part in _ON_A_SERVER for server in SERVERS
]
WHOLE_SERVERS = [Target(part, f"agent-{name}", name) for part in SEVERAL_PROCESSES for name in SERVERS]


def drawn(seed: int, reserve: int, servers: list[Target]) -> list[Fault]:
    return within_reserve(seed, SECONDS, everything(seed, servers), [*PROCESSES, *servers], reserve, CHARGE)


def everything(seed: int, servers: list[Target]) -> list[Fault]:
    return schedule(seed, SECONDS, PROCESSES, servers=servers)


@pytest.mark.parametrize("servers", [[], WHOLE_SERVERS], ids=["single faults", "whole servers"])
@pytest.mark.parametrize("reserve", [1, 2])
def test_the_reserve_covers_most_schedules_but_not_all(reserve, servers):
    covered = [is_covered(drawn(seed, reserve, servers), reserve, CHARGE) for seed in SEEDS]
    assert 100 <= sum(covered) <= 160


@pytest.mark.parametrize("reserve", [1, 2])
def test_many_covered_schedules_lose_as_many_servers(reserve):
    lost = [
        {fault.target.server for fault in drawn(seed, reserve, []) if _outlasts_a_fence(fault)}
        for seed in SEEDS
        if is_covered(drawn(seed, reserve, []), reserve, CHARGE)
    ]
    assert sum(len(servers) == reserve for servers in lost) >= 50


def _outlasts_a_fence(fault: Fault) -> bool:
    return silences(fault) and fault.seconds >= CHARGE.fence_seconds


@pytest.mark.parametrize("servers", [[], WHOLE_SERVERS], ids=["single faults", "whole servers"])
def test_a_schedule_that_is_not_covered_keeps_all_faults(servers):
    beyond = [seed for seed in SEEDS if not is_covered(drawn(seed, 1, servers), 1, CHARGE)]
    assert beyond
    assert all(drawn(seed, 1, servers) == everything(seed, servers) for seed in beyond)


def test_drawn_faults_end_in_time_and_never_overlap_on_a_target():
    for seed in SEEDS:
        ends: dict[Target, float] = {}
        for fault in drawn(seed, 2, []):
            assert ends.get(fault.target, 0.0) <= fault.at_seconds <= fault.ends_at <= SECONDS
            ends[fault.target] = fault.ends_at


def test_without_a_reserve_or_time_for_a_fence_no_server_is_lost():
    assert drawn(2, 0, []) == everything(2, [])
    faults = schedule(2, 10.0, PROCESSES)
    assert set(within_reserve(2, 10.0, faults, PROCESSES, 1, CHARGE)) <= set(faults)
