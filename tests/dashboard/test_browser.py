"""The pages in a real browser, against a live web server and a real stream server: drawn and current."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.utils import timezone
from playwright.sync_api import Page, expect

from scheduling.models import Job
from tests import factories
from tests.dashboard.scenario import recovered
from tests.dashboard.site import Site
from tests.dashboard.take_screenshots import log_in, wait_until_drawn
from tests.dashboard.waiting import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

PAGES = ("/", "/jobs/", "/servers/", "/decisions/")
OPERATORS_PAGES = ("/lending/",)
WIDTHS = {"desktop": 1400, "phone": 390}


@pytest.mark.parametrize(
    ("device", "scheme"),
    [
        pytest.param("desktop", "light", marks=pytest.mark.slow),
        pytest.param("phone", "light", marks=pytest.mark.slow),
        ("phone", "dark"),
    ],
)
def test_every_page_is_drawn_without_trouble(site: Site, device: str, scheme: str) -> None:
    """No error, no request to another host, and nothing wider than the screen."""
    recovery = recovered(site.scenario.running)
    visit = site.visit(site.scenario.operator, width=WIDTHS[device], scheme=scheme)
    jobs = (site.scenario.declined, site.scenario.completed, site.scenario.failed)
    for path in (*PAGES, *OPERATORS_PAGES, *(f"/jobs/{job.id}/" for job in jobs)):
        visit.go(path)
        _expect_drawn(visit.page, WIDTHS[device])
        if path == "/":
            expect(visit.page.get_by_text("1 failure,")).to_be_visible()
    page = visit.go(f"/jobs/{site.scenario.running.id}/")
    _expect_drawn(page, WIDTHS[device])
    expect(page.locator("[data-panel] .js-plotly-plot .main-svg").first).to_be_visible()
    _expect_details_to_be_drawn_when_unfolded(page, WIDTHS[device])
    page.get_by_role("link", name="Hardware: server node-a fell silent").click()
    page.wait_for_url(f"**/recoveries/{recovery.failed_generation}/")
    wait_until_drawn(page)
    expect(page.locator("[data-panel] .js-plotly-plot .main-svg").first).to_be_visible()
    expect(page.get_by_text("trains again", exact=True)).to_be_visible()
    visit.expect_no_trouble()


def _expect_details_to_be_drawn_when_unfolded(page: Page, width: int) -> None:
    """Figures that were folded away while the window's width changed fill their place when unfolded."""
    figures = page.locator("#details [data-panel] .js-plotly-plot")
    expect(figures).to_have_count(0)
    summary = page.locator("#details > summary")
    summary.press("Enter")
    expect(page.locator("[data-panel] .js-plotly-plot")).to_have_count(6)
    _expect_drawn(page, width)
    summary.press("Enter")
    page.set_viewport_size({"width": width - 40, "height": 900})
    summary.press("Enter")
    for figure in figures.all():
        place = figure.evaluate("element => element.clientWidth")
        expect(figure.locator(".main-svg").first).to_have_attribute("width", str(place))


def _expect_drawn(page: Page, width: int) -> None:
    wait_until_drawn(page)
    expect(page.locator("#live")).to_have_attribute("data-state", "live")
    shown = page.locator("html").evaluate("element => element.scrollWidth")
    assert shown <= width, f"{page.url} is {shown} px wide"


@pytest.mark.usefixtures("without_figures")
def test_changes_appear_without_a_reload(site: Site) -> None:
    job = site.scenario.running
    visit = site.visit(site.scenario.owner)
    page = visit.go("/jobs/")
    expect(page.locator("#live")).to_have_attribute("data-state", "live")
    page.evaluate("() => { document.body.dataset.sameDocument = 'yes'; }")
    factories.JobFactory.create(
        project=site.scenario.project, owner=site.scenario.owner, name="just submitted"
    )
    site.publish("cluster:1", "jobs")
    expect(page.get_by_role("link", name="just submitted")).to_be_visible()
    assert page.locator("body").get_attribute("data-same-document") == "yes"

    visit.go(f"/jobs/{job.id}/")
    expect(page.locator("#live")).to_have_attribute("data-state", "live")
    Job.objects.filter(pk=job.id).update(iterations_done=1500, iterations_reported_at=timezone.now())
    site.publish(f"job:{job.id}", "metrics")
    expect(page.get_by_text("1,500 of 2,000 iterations").first).to_be_visible()

    expect(page.locator("#log")).to_contain_text("iteration   966")
    factories.LogChunkFactory.create(job=job, rank=0, text="<img src=x onerror=alert(1)> is only text\n")
    wait_until(lambda: _is_shown(site, page, job.id), "the line arrives")
    assert page.locator("#log img").count() == 0
    page.locator("#log-rank").select_option("1")
    expect(page.locator("#log")).not_to_contain_text("is only text")
    visit.expect_no_trouble()


def _is_shown(site: Site, page: Page, job_id: str) -> bool:
    site.publish(f"job:{job_id}", "logs")
    return "is only text" in page.locator("#log").inner_text()


@pytest.mark.usefixtures("without_figures")
def test_pages_poll_while_the_stream_server_cannot_be_reached(site: Site, settings: Any) -> None:
    settings.STREAM_URL = "http://127.0.0.1:9"
    visit = site.visit(site.scenario.owner)
    visit.page.clock.install()
    page = visit.go("/jobs/")
    expect(page.locator("#live")).to_have_attribute("data-state", "polling")
    factories.JobFactory.create(
        project=site.scenario.project, owner=site.scenario.owner, name="found by asking"
    )
    page.clock.fast_forward(6_000)
    expect(page.get_by_role("link", name="found by asking")).to_be_visible()


@pytest.mark.usefixtures("without_figures")
def test_a_new_user_sees_how_to_begin_and_logs_in_again(site: Site) -> None:
    newcomer = factories.UserFactory.create()
    page = site.open().page
    log_in(page, site.url, newcomer.username, factories.PASSWORD)
    expect(page.get_by_role("heading", name="Submit your first job")).to_be_visible()
    page.goto(f"{site.url}/servers/")
    expect(page.locator("#live")).to_have_attribute("data-state", "live")
    page.context.clear_cookies()
    site.publish("cluster:1", "servers")
    # Two parts of the page are refused at once, and the second's redirect cancels the first's.
    expect(page).to_have_url(re.compile(r"/login/\?next="))
    page.get_by_label("User name").fill(newcomer.username)
    page.get_by_label("Password").fill(factories.PASSWORD)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url("**/servers/")
