"""What the dashboard's tests stand on: a scenario of rows, a real stream server, a real browser."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.cache import cache
from django.test import Client
from playwright.sync_api import BrowserContext, Page, expect
from pytest_django.live_server_helper import LiveServer
from redis import Redis

from tests.dashboard.scenario import Scenario, build
from tests.dashboard.site import Site, open_context
from tests.dashboard.waiting import wait_until_requests_have_ended
from tests.plugins.remembered import Remembered
from tests.streams.server import StreamServer, stream_server

# Detects a hang. How fast a page is drawn is not tested, and the planner may have to compile its core first.
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
    """Logs a client in as somebody."""

    def log_in(user: Any) -> Client:
        client.force_login(user)
        return client

    return log_in


@pytest.fixture(scope="package")
def browser_context() -> Iterator[BrowserContext]:
    with open_context() as context:
        yield context


@pytest.fixture(scope="package")
def first_page(browser_context: BrowserContext, live_server: LiveServer) -> Page:
    """A page of the site that stays open, so that the browser keeps the process of the site."""
    page = browser_context.new_page()
    page.goto(f"{_address(live_server)}/static/dashboard/icon.svg")
    return page


@pytest.fixture
def site(
    first_page: Page, live_server: LiveServer, stream_server: StreamServer, settings: Any, scenario: Scenario
) -> Iterator[Site]:
    settings.STREAM_URL = stream_server.url
    context = first_page.context
    yield Site(scenario, _address(live_server), context, Redis.from_url(os.environ["REDIS_URL"]))
    for page in context.pages:
        if page is not first_page:
            page.close()
    context.clear_cookies()
    wait_until_requests_have_ended()


def _address(live_server: LiveServer) -> str:
    return live_server.url.replace("localhost", "127.0.0.1")
