"""The site in a real browser: the browser and its compiled scripts are kept between tests, cookies and pages
are not."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from django.test import Client
from playwright.sync_api import BrowserContext, ConsoleMessage, Page, Request, sync_playwright
from redis import Redis

from tests.dashboard.chromium import open_chromium
from tests.dashboard.scenario import Scenario


@contextmanager
def open_context() -> Iterator[BrowserContext]:
    """Yield a browser context whose pages of one site share a process while one of them is open: a page does
    not compile Plotly again, which takes two seconds."""
    # Playwright keeps an event loop in this thread, which Django would take for asynchronous code.
    before = os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE")
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    with sync_playwright() as playwright:
        browser = open_chromium(playwright, "--process-per-site")
        context = browser.new_context()
        context.set_default_timeout(60_000)
        yield context
        browser.close()
    if before is None:
        del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


@dataclass
class Visit:
    """A browser page that records errors and foreign requests."""

    page: Page
    base_url: str
    problems: list[str] = field(default_factory=list)
    foreign_requests: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", self._read_console)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", self._read_request)

    def go(self, path: str) -> Page:
        self.page.goto(self.base_url + path)
        return self.page

    def expect_no_trouble(self) -> None:
        assert self.problems == []
        assert self.foreign_requests == []

    def _read_console(self, line: ConsoleMessage) -> None:
        if line.type in ("error", "warning"):
            self.problems.append(line.text)

    def _read_request(self, request: Request) -> None:
        host = urlsplit(request.url).hostname
        if host not in (urlsplit(self.base_url).hostname, None) and not request.url.startswith("data:"):
            self.foreign_requests.append(request.url)


@dataclass(frozen=True)
class Site:
    """What a test visits."""

    scenario: Scenario
    url: str
    context: BrowserContext
    redis: Redis

    def open(self, *, width: int = 1400, scheme: Any = "light") -> Visit:
        """Open a page without a session."""
        visit = Visit(self.context.new_page(), self.url)
        visit.page.set_viewport_size({"width": width, "height": 900})
        visit.page.emulate_media(color_scheme=scheme)
        return visit

    def visit(self, user: Any, **options: Any) -> Visit:
        """Open a page with a session of `user`, which the browser keeps to the end of the test."""
        client = Client()
        client.force_login(user)
        self.context.add_cookies(
            [
                {"name": name, "value": cookie.value, "url": self.url}
                for name, cookie in client.cookies.items()
            ]
        )
        return self.open(**options)

    def publish(self, channel: str, kind: str) -> None:
        self.redis.publish(f"punctual:{channel}", json.dumps({"kind": kind}))
