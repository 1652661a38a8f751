"""The dashboard in a real browser, against a live web server, a real stream server and the real API."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.utils import timezone
from playwright.sync_api import Browser, BrowserContext, Page, Route, expect, sync_playwright
from pytest_django.live_server_helper import LiveServer
from redis import Redis

from cluster.models import Server
from scheduling.choices import JobState, OfferState
from scheduling.models import Job
from tests import factories
from tests.dashboard.chromium import open_chromium
from tests.dashboard.scenario import Scenario, recovered
from tests.dashboard.take_screenshots import log_in, wait_until_drawn
from tests.dashboard.waiting import wait_until, wait_until_requests_have_ended
from tests.streams.server import StreamServer

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

PAGES = ("/", "/jobs/", "/servers/", "/decisions/")
OPERATORS_PAGES = ("/lending/",)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    # Playwright keeps an event loop in this thread, which Django would take for asynchronous code.
    before = os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE")
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    with sync_playwright() as playwright:
        browser = open_chromium(playwright)
        yield browser
        browser.close()
    if before is None:
        del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


@dataclass
class Visit:
    """A browser page that remembers what must not happen."""

    page: Page
    base_url: str
    problems: list[str] = field(default_factory=list)
    foreign_requests: list[str] = field(default_factory=list)

    def go(self, path: str) -> Page:
        self.page.goto(self.base_url + path)
        return self.page

    def expect_no_trouble(self) -> None:
        assert self.problems == []
        assert self.foreign_requests == []


@dataclass(frozen=True)
class Site:
    """What a test visits."""

    scenario: Scenario
    url: str
    browser: Browser
    redis: Redis
    contexts: list[BrowserContext]

    def visit(self, user: Any, **options: Any) -> Visit:
        context = self.browser.new_context(**{"viewport": {"width": 1400, "height": 900}, **options})
        self.contexts.append(context)
        visit = Visit(context.new_page(), self.url)
        visit.page.on(
            "console",
            lambda line: visit.problems.append(line.text) if line.type in ("error", "warning") else None,
        )
        visit.page.on("pageerror", lambda error: visit.problems.append(str(error)))
        visit.page.on(
            "request",
            lambda request: (
                visit.foreign_requests.append(request.url)
                if urlsplit(request.url).hostname not in (urlsplit(self.url).hostname, None)
                and not request.url.startswith("data:")
                else None
            ),
        )
        log_in(visit.page, self.url, user.username, factories.PASSWORD)
        return visit

    def publish(self, channel: str, kind: str) -> None:
        self.redis.publish(f"punctual:{channel}", json.dumps({"kind": kind}))


@pytest.fixture
def site(
    browser: Browser,
    live_server: LiveServer,
    stream_server: StreamServer,
    settings: Any,
    scenario: Scenario,
) -> Iterator[Site]:
    settings.STREAM_URL = stream_server.url
    url = live_server.url.replace("localhost", "127.0.0.1")
    site = Site(scenario, url, browser, Redis.from_url(os.environ["REDIS_URL"]), [])
    yield site
    for context in site.contexts:
        context.close()
    wait_until_requests_have_ended()


def test_every_page_is_drawn_without_errors_or_requests_elsewhere(site: Site) -> None:
    visit = site.visit(site.scenario.owner)
    jobs = (site.scenario.running, site.scenario.declined, site.scenario.completed, site.scenario.failed)
    for path in (*PAGES, *(f"/jobs/{job.id}/" for job in jobs)):
        page = visit.go(path)
        wait_until_drawn(page)
        expect(page.locator("#live")).to_have_attribute("data-state", "live")
    visit.expect_no_trouble()


def test_figures_are_drawn_by_plotly(site: Site) -> None:
    page = site.visit(site.scenario.owner).go(f"/jobs/{site.scenario.running.id}/")
    wait_until_drawn(page)
    expect(page.locator("[data-panel] .js-plotly-plot .main-svg").first).to_be_visible()
    expect(page.locator("[data-panel] .js-plotly-plot")).to_have_count(6)


def test_a_recoverys_phases_are_drawn_and_reached_from_its_job(site: Site) -> None:
    recovered(site.scenario.running)
    visit = site.visit(site.scenario.owner)
    page = visit.go(f"/jobs/{site.scenario.running.id}/")
    page.get_by_role("link", name="Hardware: server node-a fell silent").click()
    wait_until_drawn(page)
    expect(page.locator("[data-panel] .js-plotly-plot .main-svg").first).to_be_visible()
    expect(page.get_by_text("trains again", exact=True)).to_be_visible()
    visit.go("/")
    wait_until_drawn(page)
    expect(page.get_by_text("1 failure,")).to_be_visible()
    visit.expect_no_trouble()


@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.slow), "dark"])
def test_nothing_is_wider_than_a_phone(site: Site, scheme: str) -> None:
    visit = site.visit(
        site.scenario.operator, viewport={"width": 390, "height": 844}, color_scheme=scheme, has_touch=True
    )
    jobs = (f"/jobs/{site.scenario.running.id}/", f"/jobs/{site.scenario.declined.id}/")
    for path in (*PAGES, *OPERATORS_PAGES, *jobs):
        page = visit.go(path)
        wait_until_drawn(page)
        width = page.locator("html").evaluate("element => element.scrollWidth")
        assert width <= 390, f"{path} is {width} px wide"


def test_a_change_appears_without_a_reload(site: Site) -> None:
    page = site.visit(site.scenario.owner).go("/jobs/")
    expect(page.locator("#live")).to_have_attribute("data-state", "live")
    page.evaluate("() => { document.body.dataset.sameDocument = 'yes'; }")
    factories.JobFactory.create(
        project=site.scenario.project, owner=site.scenario.owner, name="just submitted"
    )
    site.publish("cluster:1", "jobs")
    expect(page.get_by_role("link", name="just submitted")).to_be_visible()
    assert page.locator("body").get_attribute("data-same-document") == "yes"


def test_progress_moves_while_one_looks_at_it(site: Site) -> None:
    job = site.scenario.running
    page = site.visit(site.scenario.owner).go(f"/jobs/{job.id}/")
    expect(page.locator("#live")).to_have_attribute("data-state", "live")
    Job.objects.filter(pk=job.id).update(iterations_done=1500, iterations_reported_at=timezone.now())
    site.publish(f"job:{job.id}", "metrics")
    expect(page.get_by_text("1,500 of 2,000 iterations").first).to_be_visible()


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (
            {"promise_outcome": "missed", "late": True},
            "The promise was missed: it ended 2 min after its deadline.",
        ),
        (
            {"promise_outcome": "none", "promised": False, "late": True},
            "Late: it ended 2 min after its deadline",
        ),
        (
            {"promise_outcome": "void", "void_reason": "paused_by_owner"},
            "The promise is void: its owner paused it.",
        ),
    ],
)
def test_a_jobs_headline_says_what_became_of_its_deadline(
    site: Site, facts: dict[str, Any], words: str
) -> None:
    """The verdict of its admission is beneath, as what was answered then."""
    job = site.scenario.completed
    reason = "8 GPUs are enough."
    verdict = {"decision": "admitted", "reason_code": "fits", "reason": reason}
    assert job.finished_at is not None
    deadline = job.finished_at - timedelta(seconds=120)
    Job.objects.filter(pk=job.pk).update(verdict=verdict, deadline_at=deadline, **facts)
    page = site.visit(site.scenario.owner).go(f"/jobs/{job.id}/")
    lines = page.locator("p.verdict")
    expect(lines.first).to_contain_text(words)
    expect(lines.nth(1)).to_contain_text(f"Answered when it was decided: Admitted: {reason}")


def test_pages_poll_while_the_stream_server_cannot_be_reached(site: Site, settings: Any) -> None:
    settings.STREAM_URL = "http://127.0.0.1:9"
    page = site.visit(site.scenario.owner).go("/jobs/")
    expect(page.locator("#live")).to_have_attribute("data-state", "polling")
    factories.JobFactory.create(
        project=site.scenario.project, owner=site.scenario.owner, name="found by asking"
    )
    expect(page.get_by_role("link", name="found by asking")).to_be_visible(timeout=60_000)


def test_log_lines_arrive_as_they_are_written_and_as_text(site: Site) -> None:
    job = site.scenario.running
    visit = site.visit(site.scenario.owner)
    page = visit.go(f"/jobs/{job.id}/")
    expect(page.locator("#log")).to_contain_text("iteration   966")
    factories.LogChunkFactory.create(job=job, rank=0, text="<img src=x onerror=alert(1)> is only text\n")
    wait_until(lambda: _arrived(site, page, job.id), "the line arrives")
    assert page.locator("#log img").count() == 0
    page.locator("#log-rank").select_option("1")
    expect(page.locator("#log")).not_to_contain_text("is only text")
    visit.expect_no_trouble()


def _arrived(site: Site, page: Page, job_id: str) -> bool:
    site.publish(f"job:{job_id}", "logs")
    return "is only text" in page.locator("#log").inner_text()


def test_a_job_is_cancelled_from_the_page_after_a_question(site: Site) -> None:
    job = site.scenario.waiting
    page = site.visit(site.scenario.owner).go("/jobs/")
    row = page.locator("tr", has_text=job.name)
    row.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Back").click()
    job.refresh_from_db()
    assert job.state == JobState.SUSPENDED
    row.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Cancel the job").click()
    expect(page.locator(".toast")).to_contain_text("is cancelled")
    expect(row.locator(".badge")).to_have_text("Cancelled")
    job.refresh_from_db()
    assert job.state == JobState.CANCELLED


def test_what_the_api_refuses_is_said_on_the_page(site: Site) -> None:
    job = site.scenario.waiting
    page = site.visit(site.scenario.owner).go(f"/jobs/{job.id}/")
    button = page.get_by_role("button", name="Cancel", exact=True)
    expect(button).to_be_visible()
    # Somebody else was quicker, and the page does not know yet.
    Job.objects.filter(pk=job.id).update(state=JobState.CANCELLED, finished_at=timezone.now())
    button.click()
    page.get_by_role("button", name="Cancel the job").click()
    expect(page.locator(".toast.bad")).to_be_visible()


def test_an_operator_drains_a_server_and_takes_it_back(site: Site) -> None:
    page = site.visit(site.scenario.operator).go("/servers/")
    card = page.locator(".server", has_text="node-b")
    card.get_by_role("button", name="Drain", exact=True).click()
    page.get_by_label("Reason").fill("new fans")
    page.locator("#confirm-yes").click()
    force = page.get_by_role("button", name="Drain and break them")
    # The answer comes from the planner, which may compile its core first.
    expect(force.or_(page.locator(".toast"))).to_be_visible(timeout=90_000)
    if force.is_visible():
        force.click()
    undrain = card.get_by_role("button", name="Undrain")
    expect(undrain).to_be_visible(timeout=90_000)
    expect(card).to_contain_text("new fans")
    undrain.click()
    expect(card.get_by_role("button", name="Drain", exact=True)).to_be_visible(timeout=90_000)
    assert Server.objects.get(name="node-b").drain == "none"


def test_draining_against_promises_lists_them_and_needs_a_second_yes(site: Site) -> None:
    page = site.visit(site.scenario.operator).go("/servers/")
    asked: list[dict[str, Any]] = []

    def answer(route: Route) -> None:
        body = json.loads(route.request.post_data or "{}")
        asked.append(body)
        promise = {"job": "abcdefghjkmn", "name": "<b>digits</b>", "project": "vision", "deadline_at": None}
        if body["force"]:
            route.fulfill(status=200, json={})
        else:
            problem = {"title": "Conflict", "detail": "1 promise would break.", "broken_promises": [promise]}
            route.fulfill(status=409, content_type="application/problem+json", body=json.dumps(problem))

    page.route("**/drain/", answer)
    page.locator(".server", has_text="node-a").get_by_role("button", name="Drain", exact=True).click()
    page.locator("#confirm-yes").click()
    expect(page.locator("#confirm-body li")).to_contain_text("<b>digits</b>")
    page.get_by_role("button", name="Drain and break them").click()
    expect(page.locator(".toast")).to_contain_text("is being drained")
    assert [body["force"] for body in asked] == [False, True]


def test_an_operator_sets_a_servers_end_and_withdraws_it(site: Site) -> None:
    page = site.visit(site.scenario.operator).go("/servers/")
    card = page.locator(".server", has_text="node-b")
    card.get_by_role("button", name="Set an end").click()
    page.get_by_label("Leaves at").fill("2100-01-31T14:30")
    page.locator("#confirm-yes").click()
    force = page.get_by_role("button", name="Let it leave and break them")
    # The answer comes from the planner, which may compile its core first.
    expect(force.or_(page.locator(".toast"))).to_be_visible(timeout=90_000)
    if force.is_visible():
        force.click()
    expect(card.get_by_role("button", name="Change its end")).to_be_visible(timeout=90_000)
    expect(card).to_contain_text("Leaves")
    told = Server.objects.get(name="node-b").available_until
    own = page.evaluate("new Date('2100-01-31T14:30').toISOString()")
    assert told is not None
    assert told.isoformat(timespec="milliseconds").replace("+00:00", "Z") == own
    card.get_by_role("button", name="Change its end").click()
    expect(page.get_by_label("Leaves at")).to_have_value("2100-01-31T14:30")
    page.get_by_role("button", name="Back").click()
    card.get_by_role("button", name="Stays for good").click()
    expect(card.get_by_role("button", name="Set an end")).to_be_visible(timeout=90_000)
    assert Server.objects.get(name="node-b").available_until is None


def test_an_end_against_promises_lists_them_and_needs_a_second_yes(site: Site) -> None:
    page = site.visit(site.scenario.operator).go("/servers/")
    asked: list[dict[str, Any]] = []

    def answer(route: Route) -> None:
        body = json.loads(route.request.post_data or "{}")
        asked.append(body)
        promise = {"job": "abcdefghjkmn", "name": "<b>digits</b>", "project": "vision", "deadline_at": None}
        problem = {"title": "Conflict", "detail": "1 promise would break.", "broken_promises": [promise]}
        route.fulfill(status=409, content_type="application/problem+json", body=json.dumps(problem))

    page.route(f"**/servers/{Server.objects.get(name='node-a').pk}/", answer)
    page.locator(".server", has_text="node-a").get_by_role("button", name="Set an end").click()
    page.get_by_label("Leaves at").fill("2100-01-31T14:30")
    page.locator("#confirm-yes").click()
    expect(page.locator("#confirm-body li")).to_contain_text("<b>digits</b>")
    page.get_by_role("button", name="Back").click()
    expect(page.locator("#confirm")).to_be_hidden()
    assert [body["force"] for body in asked] == [False], "no second yes, nothing more is sent"


def test_an_offer_is_accepted_from_the_page_and_leads_to_the_new_job(site: Site) -> None:
    declined, promised = site.scenario.declined, site.scenario.running
    page = site.visit(site.scenario.owner).go(f"/jobs/{declined.id}/")
    page.route("**/accept-offer/", lambda route: route.fulfill(status=201, json={"id": promised.id}))
    page.get_by_role("button", name="Accept the offer").click()
    page.get_by_role("button", name="Accept", exact=True).click()
    page.wait_for_url(f"**/jobs/{promised.id}/")


def test_an_offer_is_declined_from_the_page_once_that_is_confirmed(site: Site) -> None:
    declined = site.scenario.declined
    page = site.visit(site.scenario.owner).go(f"/jobs/{declined.id}/")
    page.get_by_role("button", name="Decline the offer").click()
    page.get_by_role("button", name="Back").click()
    declined.offer.refresh_from_db()
    assert declined.offer.state == OfferState.OPEN
    page.get_by_role("button", name="Decline the offer").click()
    page.get_by_role("button", name="Decline", exact=True).click()
    expect(page.locator(".toast")).to_contain_text("nothing is held")
    expect(page.get_by_role("button", name="Accept the offer")).to_be_hidden()
    declined.offer.refresh_from_db()
    assert declined.offer.state == OfferState.DECLINED


def test_a_deadline_is_changed_from_the_page(site: Site) -> None:
    job = site.scenario.running
    page = site.visit(site.scenario.owner).go(f"/jobs/{job.id}/")
    asked: list[dict[str, Any]] = []

    def refuse(route: Route) -> None:
        asked.append(json.loads(route.request.post_data or "{}"))
        route.fulfill(status=200, json={"changed": False, "verdict": {"reason": "8 GPUs would be needed."}})

    page.route("**/deadline/", refuse)
    page.get_by_role("button", name="Change deadline").click()
    page.get_by_label("Minutes from now").fill("1.5")
    page.get_by_role("button", name="Change", exact=True).click()
    expect(page.locator(".toast.bad")).to_contain_text("8 GPUs would be needed.")
    assert asked == [{"service_class": "slo", "deadline_seconds": 90}]


def test_a_new_user_is_told_how_to_begin(site: Site) -> None:
    newcomer = factories.UserFactory.create()
    page = site.visit(newcomer).go("/")
    expect(page.get_by_role("heading", name="Submit your first job")).to_be_visible()


def test_an_ended_session_leads_to_the_login_page_and_back(site: Site) -> None:
    visit = site.visit(site.scenario.owner)
    page = visit.go("/servers/")
    visit.page.context.clear_cookies()
    site.publish("cluster:1", "servers")
    page.wait_for_url("**/login/?next=*", timeout=60_000)
    page.get_by_label("User name").fill(site.scenario.owner.username)
    page.get_by_label("Password").fill(factories.PASSWORD)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url("**/servers/")
