"""The predicted time of an all-to-all by the workers on each server."""

from __future__ import annotations

import pytest

from moe.planning.all_to_all import ExchangeLinks, all_to_all_seconds, bytes_between, bytes_within

LINKS = ExchangeLinks(within_bytes_per_second=100e9, between_bytes_per_second=12.5e9, latency_seconds=1e-5)


def test_bytes_follow_from_the_counts_on_each_server() -> None:
    assert bytes_within(4, 16, 16.0) == 3.0
    assert bytes_between(4, 16, 16.0) == 48.0


def test_four_servers_of_four_take_what_the_paper_says() -> None:
    payload = 64e6
    assert all_to_all_seconds((4, 4, 4, 4), payload, LINKS) == pytest.approx(
        1e-5 + max(payload * 3 / 16 / 100e9, 4 * payload * 12 / 16 / 12.5e9)
    )


def test_one_server_is_cheapest_and_more_servers_have_more_interfaces() -> None:
    times = [all_to_all_seconds(shape, 1e6, LINKS) for shape in ((8,), (2, 2, 2, 2), (4, 4))]
    assert times == sorted(times)


def test_the_busiest_server_decides_among_unequal_ones() -> None:
    assert all_to_all_seconds((6, 2), 1e6, LINKS) == pytest.approx(1e-5 + 2 * 6 / 8 * 1e6 / 12.5e9)


def test_one_worker_sends_nothing() -> None:
    assert all_to_all_seconds((1,), 1e6, LINKS) == 0.0
