"""Debian's Chromium under playwright, cut off from everything it would fetch by itself."""

from __future__ import annotations

import shutil

from playwright.sync_api import Browser, Playwright

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def chromium_path() -> str | None:
    """Where Chromium is, or None."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


def open_chromium(playwright: Playwright) -> Browser:
    """A headless browser. Raises RuntimeError when Chromium is not installed."""
    path = chromium_path()
    if path is None:
        raise RuntimeError("Chromium is not installed (Debian: apt-get install chromium)")
    return playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
