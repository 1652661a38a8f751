"""Copies by an agent take the time of its server's emulated links."""

from __future__ import annotations

import io
import time
from contextlib import closing
from pathlib import Path

import pytest

from emulated_links.rates import DEFAULT_LINKS, NETWORK, NETWORK_IN, STATE, ServerLinks
from emulated_links.server import LinkServer
from workers.agent.storage.durable_store import DurableStore, fetch
from workers.agent.storage.link_copies import LinkCopies

RATE = 1e7
LINKS = ServerLinks.from_message({**DEFAULT_LINKS, NETWORK: {"bytes_per_second": RATE}})
CONTENT = bytes(2_500_000)


def test_storing_and_fetching_take_the_emulated_networks_time(tmp_path: Path) -> None:
    server = LinkServer(LINKS)
    server.start()
    try:
        with closing(LinkCopies(server, LINKS, tmp_path / "links")) as copies:
            store = DurableStore((tmp_path / "store").as_uri(), copies.sent)
            begun = time.monotonic()
            stored = store.store(io.BytesIO(CONTENT), "jobs/x/weights.pt")
            assert time.monotonic() - begun >= len(CONTENT) / RATE
            begun = time.monotonic()
            digest = fetch(stored.uri, tmp_path / "fetched", len(CONTENT), copies.received)
            assert time.monotonic() - begun >= len(CONTENT) / RATE
        assert digest == stored.sha256
        for link in (NETWORK, NETWORK_IN):
            assert server.carried()[link][STATE] == pytest.approx(len(CONTENT), abs=RATE * 1e-4)
    finally:
        server.stop()


def test_without_emulated_links_nothing_is_served_and_nothing_waits(tmp_path: Path) -> None:
    copies = LinkCopies(None, None, tmp_path / "links")
    copies.sent(10**15, time.monotonic())
    copies.received(10**15, time.monotonic())
    copies.close()
    assert not (tmp_path / "links").exists()
