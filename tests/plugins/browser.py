"""Tests marked `browser` need Chromium. Without it they are skipped, with one loud line that counts them.

`PUNCTUAL_REQUIRE_BROWSER=1` (continuous integration) turns the skip into failures.
"""

from __future__ import annotations

import os
import shutil

import pytest

#: Names under which distributions install Chromium.
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_skipped = pytest.StashKey[int]()


def browser_program() -> str | None:
    """Return the path of the installed Chromium, or None."""
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


def _is_required() -> bool:
    return os.environ.get("PUNCTUAL_REQUIRE_BROWSER", "") not in ("", "0")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run a failed test once more, since Chromium sometimes loses a page; it is counted as rerun in the
    closing line."""
    for item in items:
        if item.get_closest_marker("browser") is not None:
            item.add_marker(pytest.mark.flaky(reruns=1, only_rerun="Target crashed"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("browser") is None or browser_program() is not None:
        return
    if _is_required():
        pytest.fail("Chromium is not installed, and PUNCTUAL_REQUIRE_BROWSER forbids to skip", pytrace=False)
    item.config.stash[_skipped] = item.config.stash.get(_skipped, 0) + 1
    pytest.skip("Chromium is not installed")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    count = config.stash.get(_skipped, 0)
    if count:
        text = f"NO BROWSER: {count} browser tests were skipped, for Chromium is not installed"
        terminalreporter.write_sep("!", text, red=True, bold=True)


@pytest.fixture(scope="session")
def chromium() -> str:
    """Return the path of Chromium, for Playwright's `executable_path`."""
    program = browser_program()
    assert program is not None
    return program
