"""The page is self-contained, escapes markup of traces, and draws in a real browser."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

from simulation.reports.html import report_page, write_report
from tests.dashboard.chromium import open_chromium
from tests.simulation.reports.outcomes import best_effort, finished, outcome, random_outcome

HOSTILE = "</script><script>window.stolen=1</script><img src=x onerror=window.stolen=1>"


def hostile_run():
    return outcome(
        [finished(HOSTILE, 0, 0, 70, deadline=60), best_effort("b", 0, 1, 9)],
        settings={"policy": "edf", "trace": HOSTILE, HOSTILE: HOSTILE},
        broken={HOSTILE: HOSTILE},
        notes=(HOSTILE,),
    )


def embedded(page: str, name: str):
    element = re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', page, re.DOTALL)
    assert element is not None
    return json.loads(element.group(1))


def test_the_page_needs_nothing_from_elsewhere(tmp_path):
    page = write_report(
        [random_outcome(30, 40)], tmp_path / "made" / "report.html", title="A run"
    ).read_text()
    own = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r'(src|href)="', own)
    assert "default-src 'none'" in own
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["report.html"]


def test_plotly_can_be_a_file_that_several_pages_share(tmp_path):
    page = write_report(
        [random_outcome(30, 40)], tmp_path / "report.html", title="A run", plotlyjs="directory"
    )
    assert '<script src="plotly.min.js">' in page.read_text()
    assert page.stat().st_size < 500_000
    assert (tmp_path / "plotly.min.js").stat().st_size > 1_000_000


def test_every_figure_names_its_simulation_settings():
    page = report_page([random_outcome(30, 40)], title="A run", plotlyjs="directory")
    caption = (
        "Simulated · policy punctual · trace by-hand · seed 0 · 1 servers × 4 GPUs · slot 60 s · pauses "
        "measured"
    )
    assert page.count(f'<p class="made">{caption}</p>') == 11
    assert all(figure["layout"]["meta"]["made"] == caption for figure in embedded(page, "figures").values())


def test_text_from_a_trace_never_becomes_markup():
    page = report_page([hostile_run(), hostile_run()], title=HOSTILE, plotlyjs="directory")
    assert "<img" not in page
    assert "<script>window" not in page
    assert embedded(page, "summaries")[0]["trace"] == HOSTILE


def test_interrupted_run_has_a_banner_first():
    page = report_page([random_outcome(30, 40, interrupted=True)], title="A run", plotlyjs="directory")
    first = page[page.index("<main>") :].split('class="headlines"')[0]
    assert re.search(r'class="banner">This run was stopped after \d', first)
    assert "best value" not in first


def test_late_promises_are_listed_up_to_a_limit():
    run = random_outcome(30, 40, broken={f"job-{number}": "it was paused" for number in range(60)})
    page = report_page([run], title="A run", plotlyjs="directory")
    assert page.count("it was paused</li>") == 50
    assert "and 10 more" in page


def test_eighty_thousand_instants_make_a_page_of_about_five_megabytes(tmp_path):
    run = random_outcome(2_400, 80_000)
    page = write_report([run], tmp_path / "report.html", title="Two months")
    assert page.stat().st_size < 5.5e6


@pytest.mark.browser
@pytest.mark.parametrize(
    "size",
    [pytest.param((1400, 900), id="desktop", marks=pytest.mark.slow), pytest.param((390, 844), id="phone")],
)
def test_a_real_browser_draws_every_figure_and_runs_no_markup(tmp_path: Path, chromium: str, size):
    path = write_report([hostile_run(), random_outcome(40, 300)], tmp_path / "report.html", title=HOSTILE)
    with sync_playwright() as playwright:
        browser = open_chromium(playwright)
        page = browser.new_page(viewport={"width": size[0], "height": size[1]})
        troubles: list[str] = []
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on(
            "console",
            lambda message: troubles.append(message.text) if message.type in ("error", "warning") else None,
        )
        page.on(
            "request",
            lambda request: (
                troubles.append(request.url)
                if not request.url.startswith(("file:", "data:", "blob:"))
                else None
            ),
        )
        page.goto(path.as_uri())
        page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
        figures = page.locator("[data-figure]")
        for number in range(figures.count()):
            figures.nth(number).scroll_into_view_if_needed()
            expect(figures.nth(number)).to_have_attribute("data-drawn", "yes", timeout=60_000)
        assert page.evaluate("window.stolen") is None
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
        assert troubles == []
        browser.close()
