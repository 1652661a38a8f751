"""Takes a picture of every page at desktop and phone width, from a running platform, into docs/screenshots/.

    python -m tests.dashboard.take_screenshots http://127.0.0.1:8000 USERNAME PASSWORD [--job ID] [--dark]

Without `--job` it opens the first running job of the table, else the first job.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from playwright.sync_api import Browser, Page, ViewportSize, expect, sync_playwright

from tests.dashboard.chromium import open_chromium

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "screenshots"
SIZES: dict[str, ViewportSize] = {
    "desktop": {"width": 1400, "height": 900},
    "phone": {"width": 390, "height": 844},
}


def log_in(page: Page, base_url: str, username: str, password: str) -> None:
    """Through the form, as a person does."""
    page.goto(f"{base_url}/login/")
    page.get_by_label("User name").fill(username)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url(f"{base_url}/")


def wait_until_drawn(page: Page) -> None:
    """Every panel that is not folded away has its figure, or says why there is none."""
    expect(page.locator("[data-panel] .figure:not([data-drawn]):not(details:not([open]) *)")).to_have_count(
        0, timeout=60_000
    )


def _find_job(page: Page, base_url: str) -> str | None:
    for query in ("?state=running&promise=promised", "?state=running", "?state=completed", ""):
        page.goto(f"{base_url}/jobs/{query}")
        links = page.locator("table.jobs td.name a")
        if links.count():
            found = re.search(r"/jobs/([a-z0-9]+)/", links.first.get_attribute("href") or "")
            return found.group(1) if found else None
    return None


def _simulations(page: Page, base_url: str) -> dict[str, str]:
    """The pages on simulations, with the newest study; none for people who are no operators."""
    page.goto(f"{base_url}/")
    if not page.locator('nav a[href="/simulations/"]').count():
        return {}
    page.goto(f"{base_url}/simulations/")
    links = page.locator("table.jobs td.name a")
    newest = {"simulation": links.first.get_attribute("href") or ""} if links.count() else {}
    return {"simulations": "/simulations/", **newest}


def _lending(page: Page, base_url: str) -> dict[str, str]:
    """The pages on lending, with the newest reclaim; none for people who are no operators."""
    page.goto(f"{base_url}/")
    if not page.locator('nav a[href="/lending/"]').count():
        return {}
    page.goto(f"{base_url}/lending/")
    links = page.locator('table.jobs td.name a:not([href*="kind=loan"])')
    newest = {"reclaim": links.first.get_attribute("href") or ""} if links.count() else {}
    return {"lending": "/lending/", **newest}


def take_all(
    browser: Browser,
    base_url: str,
    username: str,
    password: str,
    *,
    job: str | None,
    dark: bool,
    folder: Path,
) -> list[Path]:
    """Pictures of all pages at all sizes; returns their paths."""
    taken: list[Path] = []
    for size, viewport in SIZES.items():
        context = browser.new_context(viewport=viewport, color_scheme="dark" if dark else "light")
        page = context.new_page()
        page.goto(f"{base_url}/login/")
        taken.append(_take(page, folder, "login", size, dark))
        log_in(page, base_url, username, password)
        job = job or _find_job(page, base_url)
        pages = {"overview": "/", "jobs": "/jobs/", "servers": "/servers/", "decisions": "/decisions/"}
        if job:
            pages["job"] = f"/jobs/{job}/"
        pages |= _lending(page, base_url) | _simulations(page, base_url)
        for name, path in pages.items():
            page.goto(base_url + path)
            wait_until_drawn(page)
            page.wait_for_timeout(700)  # figures' first layout; nothing is asserted here
            taken.append(_take(page, folder, name, size, dark))
        context.close()
    return taken


def _take(page: Page, folder: Path, name: str, size: str, dark: bool) -> Path:
    path = folder / f"{name}-{size}{'-dark' if dark else ''}.png"
    page.screenshot(path=path)
    return path


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("base_url")
    parser.add_argument("username")
    parser.add_argument("password")
    parser.add_argument("--job")
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    asked = parser.parse_args(arguments)
    asked.folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = open_chromium(playwright)
        taken = take_all(
            browser,
            asked.base_url.rstrip("/"),
            asked.username,
            asked.password,
            job=asked.job,
            dark=asked.dark,
            folder=asked.folder,
        )
        browser.close()
    for path in taken:
        print(f"{path.name}  {path.stat().st_size // 1024} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
