"""Which servers stand by, and which of them replaces a lost server."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from recovery.placement.standby import PoolServer, candidates, pool_of, replaced, surplus


def rack_of(number: int, *, racks: int = 2, **facts: object) -> PoolServer:
    return PoolServer(f"server-{number}", 8, "A100", f"rack-{number % racks}", **facts)  # type: ignore[arg-type]


def test_the_pool_is_spread_over_racks_and_leaves_one_server_in_use() -> None:
    servers = [rack_of(number) for number in range(4)]
    assert pool_of(servers, 2) == ["server-0", "server-1"]
    assert pool_of(servers, 9) == ["server-0", "server-1", "server-2"]
    assert pool_of(servers[:1], 1) == []
    assert pool_of(servers, 0) == []


def test_idle_servers_stand_by_first_and_promised_ones_last() -> None:
    promised = rack_of(0, promised_gpus=1, busy_gpus=1)
    busy, empty = rack_of(1, busy_gpus=8), rack_of(2)
    small = replace(rack_of(3), gpus=4)
    order = [candidate.id for candidate in candidates([promised, busy, small, empty], 1, "A100")]
    assert order == ["server-2", "server-3", "server-1", "server-0"]
    assert candidates([promised, busy, rack_of(2, standby=True)], 1, "A100") == [], "it has as many as wanted"


def test_incomplete_servers_do_not_stand_by() -> None:
    broken = rack_of(0, whole=False)
    assert candidates([broken, rack_of(1), rack_of(2)], 1, "A100")[0].id == "server-1"
    assert candidates([broken, rack_of(1)], 1, "A100") == [], "the last whole one stays in use"


def test_a_lost_server_is_replaced_from_another_rack_if_large_enough() -> None:
    lost = rack_of(0, whole=False, lost=True)
    same_rack, other_rack = rack_of(2, standby=True), rack_of(3, standby=True)
    small = replace(rack_of(1, standby=True), gpus=4)
    assert replaced([lost, small, same_rack, other_rack]) == [("server-0", "server-3")]
    assert replaced([lost, small, same_rack]) == [("server-0", "server-2")]
    assert replaced([lost, small]) == [("server-0", "server-1")], "better than none"
    assert replaced([lost, replace(other_rack, kind="V100")]) == []
    assert replaced([lost, replace(other_rack, whole=False)]) == []


def test_surplus_standbys_are_released_lost_ones_first() -> None:
    servers = [rack_of(0, standby=True), rack_of(1, standby=True, whole=False, lost=True), rack_of(2)]
    assert surplus(servers, 1) == ["server-1"], "the lost one is released first"
    assert surplus(servers, 2) == []


@st.composite
def clusters(draw: st.DrawFn) -> list[PoolServer]:
    servers = []
    for number in range(draw(st.integers(1, 8))):
        lost = draw(st.booleans())
        servers.append(
            PoolServer(
                f"s{number}", draw(st.sampled_from([4, 8])), draw(st.sampled_from(["A", "B"])),
                draw(st.sampled_from(["", "r", "q"])), draw(st.booleans()),
                whole=not lost and draw(st.booleans()), lost=lost,
            )
        )  # fmt: skip
    return servers


@given(clusters())
def test_a_lost_server_waits_only_without_a_ready_one_of_its_kind(
    servers: list[PoolServer],
) -> None:
    pairs = replaced(servers)
    after = {server.id: server for server in servers}
    for lost, instead in pairs:
        assert after[instead].ready
        assert after[lost].kind == after[instead].kind
        after[lost], after[instead] = (
            replace(after[lost], standby=True), replace(after[instead], standby=False),
        )  # fmt: skip
    assert len({name for pair in pairs for name in pair}) == 2 * len(pairs)
    for kind in ("A", "B"):
        mine = [server for server in after.values() if server.kind == kind]
        waiting = any(server.lost and not server.standby for server in mine)
        assert not (waiting and any(server.ready for server in mine))
        assert sum(server.standby for server in mine) == sum(
            server.standby for server in servers if server.kind == kind
        )
    assert replaced(list(after.values())) == []
