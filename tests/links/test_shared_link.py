"""A link never exceeds its rate, and overlapping transfers share it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulated_links.arbiter import LONGEST_DELAY_SECONDS, Arbiter
from emulated_links.rates import (
    DEFAULT_LINKS,
    EQUAL_SHARES,
    EXPERTS,
    GRADIENTS,
    NETWORK,
    SPINE,
    STATE,
    TRAFFIC,
    WITHIN_SERVER,
    ServerLinks,
)
from emulated_links.shared_link import SharedLink, Transfer
from emulated_links.wire import PIECE_BYTES, Request


def _run(link: SharedLink, arrivals: list[tuple[float, str, int]]) -> list[Transfer]:
    """Return the ends of transfers that begin at these times, in this order, once all have ended."""
    transfers = []
    for at, traffic, size in arrivals:
        link.advance(at)
        transfers.append(link.add(traffic, size, at))
    while (end := link.next_end()) is not None:
        link.advance(end)
    return transfers


def _ends(link: SharedLink, arrivals: list[tuple[float, str, int]]) -> list[float]:
    ends = [transfer.ended_at for transfer in _run(link, arrivals)]
    assert None not in ends
    return ends  # type: ignore[return-value]


def test_one_class_uses_the_whole_link_one_transfer_at_a_time() -> None:
    link = SharedLink(100.0, EQUAL_SHARES)
    assert _ends(link, [(0.0, GRADIENTS, 100), (0.5, GRADIENTS, 100)]) == pytest.approx([1.0, 2.0])


def test_two_classes_that_overlap_get_half_each() -> None:
    link = SharedLink(100.0, EQUAL_SHARES)
    # Half each until the smaller one ends, then the other has the whole link.
    assert _ends(link, [(0.0, GRADIENTS, 100), (0.0, STATE, 50)]) == pytest.approx([1.5, 1.0])


def test_three_classes_get_a_third_each() -> None:
    link = SharedLink(300.0, EQUAL_SHARES)
    assert _ends(link, [(0.0, traffic, 100) for traffic in TRAFFIC]) == pytest.approx([1.0, 1.0, 1.0])


def test_linas_interference_slows_both_beyond_sharing() -> None:
    link = SharedLink(1.0, {EXPERTS: 0.24, GRADIENTS: 0.055, STATE: 0.5})
    # 0.24 of the link for the all-to-all while the all-reduce is there, which has got 0.055 * 25 by then.
    ends = _ends(link, [(0.0, EXPERTS, 6), (0.0, GRADIENTS, 10)])
    assert ends == pytest.approx([25.0, 25.0 + 10 - 0.055 * 25])


arrivals = st.lists(
    st.tuples(st.floats(0, 50), st.sampled_from(TRAFFIC), st.integers(1, 5000)), min_size=1, max_size=20
)


@given(arrivals, st.floats(1.0, 1e4))
def test_no_link_carries_more_than_its_rate(arrived: list[tuple[float, str, int]], rate: float) -> None:
    arrived = sorted(arrived, key=lambda one: one[0])
    link = SharedLink(rate, EQUAL_SHARES)
    ends = _ends(link, arrived)
    for (at, _traffic, size), end in zip(arrived, ends, strict=True):
        assert end >= at + size / rate * (1 - 1e-9) - 2e-6
    total = sum(size for _at, _traffic, size in arrived)
    assert max(ends) >= arrived[0][0] + total / rate * (1 - 1e-9) - 2e-5
    # It is never idle while a transfer waits: the end is no later than if all had come with the last.
    assert max(ends) <= arrived[-1][0] + total / rate * (1 + 1e-9) + 1e-6
    assert sum(link.carried.values()) == pytest.approx(total, abs=rate * 1e-5 * len(arrived))


def _ends_asked_late(link: SharedLink, arrivals: list[tuple[float, float, int]]) -> list[float]:
    """Return the ends of transfers of one class, each with its begin, its request and its size, in order of
    requests."""
    transfers = []
    for began, asked, size in arrivals:
        link.advance(asked)
        transfers.append(link.add(GRADIENTS, size, began))
    while (end := link.next_end()) is not None:
        link.advance(end)
    return [transfer.ended_at for transfer in transfers if transfer.ended_at is not None]


def test_a_late_request_gets_the_links_past_idle_time() -> None:
    """The link was idle for a second before the other transfer, and is busy when the late request comes."""
    arrived = [(0.0, 0.0, 100), (2.0, 2.0, 100), (1.0, 2.5, 100)]
    assert _ends_asked_late(SharedLink(100.0, EQUAL_SHARES), arrived) == pytest.approx([1.0, 3.0, 2.0])
    # The same if the link is idle again; no idle time is used twice.
    arrived = [(0.0, 0.0, 100), (2.0, 2.0, 100), (1.5, 3.5, 100), (1.0, 3.5, 100)]
    ends = _ends_asked_late(SharedLink(100.0, EQUAL_SHARES), arrived)
    assert ends == pytest.approx([1.0, 3.0, 3.5, 4.0])


@given(
    st.lists(st.tuples(st.floats(0, 50), st.floats(0, 20), st.integers(1, 5000)), min_size=1, max_size=20),
    st.floats(1.0, 1e4),
)
def test_late_requests_never_exceed_the_links_rate(late: list[tuple[float, float, int]], rate: float) -> None:
    arrived = sorted(((at, at + lag, size) for at, lag, size in late), key=lambda one: one[1])
    link = SharedLink(rate, EQUAL_SHARES)
    ends = _ends_asked_late(link, arrived)
    assert len(ends) == len(arrived)
    for (at, _asked, size), end in zip(arrived, ends, strict=True):
        assert end >= at + size / rate * (1 - 1e-9) - 2e-6
    slack = 2e-5 + 1e-9 * max(ends)
    for until in ends:
        within = [(at, size) for (at, _asked, size), end in zip(arrived, ends, strict=True) if end <= until]
        total = sum(size for _at, size in within)
        assert until >= min(at for at, _size in within) + total / rate - slack
    # It is never idle while a transfer waits, whichever was late.
    total = sum(size for _at, _asked, size in arrived)
    assert max(ends) <= max(at for at, _asked, _size in arrived) + total / rate + slack
    assert sum(link.carried.values()) == pytest.approx(total, abs=rate * 1e-5 * len(arrived))


@given(arrivals, st.floats(1.0, 1e4))
def test_transfers_of_a_class_end_in_order_of_arrival(
    arrived: list[tuple[float, str, int]], rate: float
) -> None:
    arrived = sorted(arrived, key=lambda one: one[0])
    ends = _ends(SharedLink(rate, EQUAL_SHARES), arrived)
    for traffic in TRAFFIC:
        own = [end for (_at, each, _size), end in zip(arrived, ends, strict=True) if each == traffic]
        assert own == sorted(own)


def _links(**shares: float) -> ServerLinks:
    return ServerLinks.from_message({**DEFAULT_LINKS, "shares": shares})


def _until_ended(arbiter: Arbiter, request: Request, now: float) -> float:
    pending = arbiter.begin(request, now)
    while pending.ended_at is None:
        end = arbiter.next_end()
        assert end is not None
        arbiter.advance(end)
    return pending.ended_at


def test_a_path_is_as_slow_as_its_slowest_link() -> None:
    arbiter = Arbiter(_links())
    ended = _until_ended(arbiter, Request(GRADIENTS, (NETWORK, SPINE), PIECE_BYTES, 100.0), 100.0)
    assert ended - 100.0 == pytest.approx(PIECE_BYTES / DEFAULT_LINKS[SPINE]["bytes_per_second"], abs=1e-6)


def test_transfers_on_different_links_do_not_interfere() -> None:
    arbiter = Arbiter(_links())
    paths = ((NETWORK,), (WITHIN_SERVER,))
    pending = [arbiter.begin(Request(GRADIENTS, path, PIECE_BYTES, 100.0), 100.0) for path in paths]
    while (end := arbiter.next_end()) is not None:
        arbiter.advance(end)
    for (link,), one in zip(paths, pending, strict=True):
        alone = PIECE_BYTES / DEFAULT_LINKS[link]["bytes_per_second"]
        assert one.ended_at == pytest.approx(100.0 + alone, abs=1e-6)


def test_idle_time_of_a_link_can_be_claimed_for_a_bounded_time() -> None:
    seconds = PIECE_BYTES / DEFAULT_LINKS[NETWORK]["bytes_per_second"]
    late = _until_ended(Arbiter(_links()), Request(STATE, (NETWORK,), PIECE_BYTES, 99.0), 100.0)
    assert late == pytest.approx(99.0 + seconds, abs=1e-6)
    claimed = _until_ended(Arbiter(_links()), Request(STATE, (NETWORK,), PIECE_BYTES, 0.0), 100.0)
    assert claimed == pytest.approx(100.0 - LONGEST_DELAY_SECONDS + seconds, abs=1e-6)


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"network": {"bytes_per_second": 0}}, "network.bytes_per_second must be above 0"),
        ({"network": {}}, "network.bytes_per_second is not set"),
        ({"network": 5}, "network must be a table"),
        ({"network": {"bytes_per_second": 1, "speed": 2}}, "network.speed is no property"),
        ({"spine": {"bytes_per_second": 1, "latency_seconds": -1}}, "spine.latency_seconds must lie within"),
        ({"token_ring": {"bytes_per_second": 1}}, "token_ring is no link"),
        ({"shares": {"experts": 0}}, "shares.experts must be above 0"),
        ({"shares": {"gossip": 0.5}}, "shares.gossip is no class"),
        ({"disk": {"bytes_per_second": True}}, "disk.bytes_per_second must be a number"),
    ],
)
def test_invalid_links_are_refused_by_name(table: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        ServerLinks.from_message({**DEFAULT_LINKS, **table})


def test_links_survive_serialisation() -> None:
    links = _links(experts=0.24, gradients=0.055)
    assert ServerLinks.from_message(links.to_message()) == links
