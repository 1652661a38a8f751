"""The base of the dashboard's tests: a scenario of rows, a real stream server, a real browser."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from django.core.cache import cache
from django.test import Client
from playwright.sync_api import BrowserContext, Error, Page, expect
from pytest_django.live_server_helper import LiveServer
from redis import Redis

from dashboard.figures.panel import Panel
from tests.dashboard.scenario import Scenario, build
from tests.dashboard.site import Site, open_context
from tests.dashboard.waiting import wait_until_requests_have_ended
from tests.plugins.remembered import Remembered
from tests.streams.server import StreamServer, stream_server

# Detects a hang. The speed of drawing is not tested, and the planner may have to compile its core first.
expect.set_options(timeout=120_000)

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
    """Return a function that logs a client in as a user."""

    def log_in(user: Any) -> Client:
        client.force_login(user)
        return client

    return log_in


@pytest.fixture
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every panel empty: drawing figures takes most of a page's time."""
    monkeypatch.setattr(Panel, "draw", lambda _panel, _request: {"empty": "No figure in this test."})


@pytest.fixture(scope="package")
def browser_context() -> Iterator[BrowserContext]:
    with open_context() as context:
        yield context


@pytest.fixture
def site(
    browser_context: BrowserContext,
    live_server: LiveServer,
    stream_server: StreamServer,
    settings: Any,
    scenario: Scenario,
) -> Iterator[Site]:
    settings.STREAM_URL = stream_server.url
    address = _address(live_server)
    kept = _kept_page(browser_context, address)
    yield Site(scenario, address, browser_context, Redis.from_url(os.environ["REDIS_URL"]))
    for page in browser_context.pages:
        if page is not kept:
            page.close()
    browser_context.clear_cookies()
    wait_until_requests_have_ended()


def _kept_page(context: BrowserContext, address: str) -> Page:
    """Return the site's page that stays open, so that the browser keeps the site's process, or a new one if
    that process has crashed."""
    for page in context.pages:
        with suppress(Error):
            page.evaluate("1")
            return page
        page.close()
    page = context.new_page()
    page.goto(f"{address}/static/dashboard/icon.svg")
    return page


def _address(live_server: LiveServer) -> str:
    return live_server.url.replace("localhost", "127.0.0.1")
