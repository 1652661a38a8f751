"""Users' actions with the buttons of the pages, in a real browser against the real API."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.utils import timezone
from playwright.sync_api import Route, expect

from cluster.models import Server
from scheduling.choices import JobState, OfferState, PromiseOutcome
from scheduling.models import Job
from tests import factories
from tests.dashboard.site import Site

pytestmark = [
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("without_figures"),
]


def test_a_job_is_cancelled_after_a_question(site: Site) -> None:
    waiting = site.scenario.waiting
    other = factories.JobFactory.create(
        project=waiting.project, owner=waiting.owner, name="cancelled elsewhere", state=JobState.SUSPENDED
    )
    page = site.visit(site.scenario.owner).go("/jobs/")
    row = page.locator("tr", has_text=waiting.name)
    row.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Back").click()
    waiting.refresh_from_db()
    assert waiting.state == JobState.SUSPENDED
    row.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Cancel the job").click()
    expect(page.locator(".toast")).to_contain_text("is cancelled")
    expect(row.locator(".badge")).to_have_text("Cancelled")
    waiting.refresh_from_db()
    assert waiting.state == JobState.CANCELLED
    page.locator("tr", has_text=other.name).get_by_role("button", name="Cancel").click()
    # The API refuses: another user was quicker, and the page is not updated yet.
    Job.objects.filter(pk=other.id).update(state=JobState.CANCELLED, finished_at=timezone.now())
    page.get_by_role("button", name="Cancel the job").click()
    expect(page.locator(".toast.bad")).to_be_visible()


def test_an_operator_drains_a_server_and_sets_its_end(site: Site) -> None:
    # Without promises there is none to break.
    Job.objects.filter(promised=True).update(promised=False, promise_outcome=PromiseOutcome.NONE)
    page = site.visit(site.scenario.operator).go("/servers/")
    card = page.locator(".server", has_text="node-b")
    card.get_by_role("button", name="Drain", exact=True).click()
    page.get_by_label("Reason").fill("new fans")
    page.locator("#confirm-yes").click()
    undrain = card.get_by_role("button", name="Undrain")
    expect(undrain).to_be_visible()
    expect(card).to_contain_text("new fans")
    undrain.click()
    expect(card.get_by_role("button", name="Drain", exact=True)).to_be_visible()
    assert Server.objects.get(name="node-b").drain == "none"

    card.get_by_role("button", name="Set an end").click()
    page.get_by_label("Leaves at").fill("2100-01-31T14:30")
    page.locator("#confirm-yes").click()
    expect(card.get_by_role("button", name="Change its end")).to_be_visible()
    expect(card).to_contain_text("Leaves")
    available_until = Server.objects.get(name="node-b").available_until
    assert available_until is not None
    local = page.evaluate("new Date('2100-01-31T14:30').toISOString()")
    assert available_until.isoformat(timespec="milliseconds").replace("+00:00", "Z") == local
    card.get_by_role("button", name="Change its end").click()
    expect(page.get_by_label("Leaves at")).to_have_value("2100-01-31T14:30")
    page.get_by_role("button", name="Back").click()
    card.get_by_role("button", name="Stays for good").click()
    expect(card.get_by_role("button", name="Set an end")).to_be_visible()
    assert Server.objects.get(name="node-b").available_until is None


def test_breaking_promises_lists_them_and_needs_a_second_yes(site: Site) -> None:
    page = site.visit(site.scenario.operator).go("/servers/")
    card = page.locator(".server", has_text="node-a")
    bodies: list[dict[str, Any]] = []

    def answer(route: Route) -> None:
        body = json.loads(route.request.post_data or "{}")
        bodies.append(body)
        promise = {"job": "abcdefghjkmn", "name": "<b>digits</b>", "project": "vision", "deadline_at": None}
        if body["force"]:
            route.fulfill(status=200, json={})
        else:
            problem = {"title": "Conflict", "detail": "1 promise would break.", "broken_promises": [promise]}
            route.fulfill(status=409, content_type="application/problem+json", body=json.dumps(problem))

    page.route("**/drain/", answer)
    page.route(f"**/servers/{Server.objects.get(name='node-a').pk}/", answer)
    card.get_by_role("button", name="Drain", exact=True).click()
    page.locator("#confirm-yes").click()
    expect(page.locator("#confirm-body li")).to_contain_text("<b>digits</b>")
    page.get_by_role("button", name="Drain and break them").click()
    expect(page.locator(".toast")).to_contain_text("is being drained")
    assert [body["force"] for body in bodies] == [False, True]

    card.get_by_role("button", name="Set an end").click()
    page.get_by_label("Leaves at").fill("2100-01-31T14:30")
    page.locator("#confirm-yes").click()
    expect(page.locator("#confirm-body li")).to_contain_text("<b>digits</b>")
    page.get_by_role("button", name="Back").click()
    expect(page.locator("#confirm")).to_be_hidden()
    assert [body["force"] for body in bodies[2:]] == [False], "without a second yes nothing more is sent"


def test_an_offer_is_declined_or_accepted(site: Site) -> None:
    declined, running = site.scenario.declined, site.scenario.running
    page = site.visit(site.scenario.owner).go(f"/jobs/{declined.id}/")
    page.route("**/accept-offer/", lambda route: route.fulfill(status=201, json={"id": running.id}))
    page.get_by_role("button", name="Accept the offer").click()
    page.get_by_role("button", name="Accept", exact=True).click()
    page.wait_for_url(f"**/jobs/{running.id}/")

    page.goto(f"{site.url}/jobs/{declined.id}/")
    page.get_by_role("button", name="Decline the offer").click()
    page.get_by_role("button", name="Back").click()
    declined.offer.refresh_from_db()
    assert declined.offer.state == OfferState.OPEN
    page.get_by_role("button", name="Decline the offer").click()
    page.get_by_role("button", name="Decline", exact=True).click()
    expect(page.locator(".toast")).to_contain_text("free for other jobs")
    expect(page.get_by_role("button", name="Accept the offer")).to_be_hidden()
    declined.offer.refresh_from_db()
    assert declined.offer.state == OfferState.DECLINED


def test_a_deadline_is_changed_from_the_page(site: Site) -> None:
    page = site.visit(site.scenario.owner).go(f"/jobs/{site.scenario.running.id}/")
    bodies: list[dict[str, Any]] = []

    def refuse(route: Route) -> None:
        bodies.append(json.loads(route.request.post_data or "{}"))
        route.fulfill(status=200, json={"changed": False, "verdict": {"reason": "8 GPUs would be needed."}})

    page.route("**/deadline/", refuse)
    page.get_by_role("button", name="Change deadline").click()
    page.get_by_label("Minutes from now").fill("1.5")
    page.get_by_role("button", name="Change", exact=True).click()
    expect(page.locator(".toast.bad")).to_contain_text("8 GPUs would be needed.")
    assert bodies == [{"service_class": "slo", "deadline_seconds": 90}]
