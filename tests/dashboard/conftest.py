"""What the dashboard's tests stand on: a scenario of rows, a real stream server, a real browser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.core.cache import cache
from django.test import Client
from playwright.sync_api import expect

from tests.dashboard.scenario import Scenario, build
from tests.plugins.remembered import Remembered
from tests.streams.server import stream_server

# Detects a hang. How fast a page is drawn is not tested.
expect.set_options(timeout=60_000)

__all__ = ["stream_server"]  # a fixture


@pytest.fixture(autouse=True)
def _empty_cache() -> None:
    """Counted login failures are kept in the cache, which outlives a test."""
    cache.clear()


@pytest.fixture(scope="session")
def scenarios() -> Remembered[Scenario]:
    return Remembered(build, fresh_seconds=10.0)


@pytest.fixture
def scenario(db: None, scenarios: Remembered[Scenario]) -> Scenario:
    return scenarios()


@pytest.fixture
def as_user(client: Client) -> Callable[[Any], Client]:
    """Logs a client in as somebody."""

    def log_in(user: Any) -> Client:
        client.force_login(user)
        return client

    return log_in
