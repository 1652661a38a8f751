"""Debian's Chromium under playwright, isolated from all requests that it makes on its own."""

from __future__ import annotations

from playwright.sync_api import Browser, Playwright

from tests.plugins.browser import browser_program

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def open_chromium(playwright: Playwright, *more: str) -> Browser:
    """Yield a headless browser with ``more`` arguments. Raises RuntimeError if Chromium is not installed."""
    path = browser_program()
    if path is None:
        raise RuntimeError("Chromium is not installed (Debian: apt-get install chromium)")
    return playwright.chromium.launch(executable_path=path, args=[*ARGUMENTS, *more])
