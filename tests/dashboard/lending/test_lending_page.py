"""The lending pages in a real browser: drawn on every screen, current, and able to lend and to ask back by
hand."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.utils import timezone
from playwright.sync_api import Locator, Page, Route, expect

from lending.choices import OrderSource
from lending.models import InferenceCluster, LoanOrder, ReclaimOrder
from lending.services.forecasts import forecast_usage
from lending.services.loans import carry_out_loans, loan_order_create
from lending.services.reclaiming import begin_reclaims, reclaim_confirm, reclaim_order_create
from lending.services.usage import usage_report
from tests.dashboard.lending.lending_day import Day, build_day
from tests.dashboard.scenario import Scenario, build
from tests.dashboard.site import Site
from tests.dashboard.take_screenshots import wait_until_drawn
from tests.dashboard.waiting import wait_until
from tests.plugins.remembered import Remembered

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


@pytest.fixture(scope="module")
def scenes() -> Remembered[tuple[Scenario, Day]]:
    return Remembered(lambda: (build(), build_day(periods=72)))


@pytest.fixture
def scene(db: None, scenes: Remembered[tuple[Scenario, Day]]) -> tuple[Scenario, Day]:
    return scenes()


@pytest.fixture
def scenario(scene: tuple[Scenario, Day]) -> Scenario:
    return scene[0]


@pytest.fixture
def day(scene: tuple[Scenario, Day]) -> Day:
    return scene[1]


@pytest.mark.parametrize(
    ("width", "scheme"), [pytest.param(1400, "light", marks=pytest.mark.slow), (390, "dark")]
)
def test_pages_are_drawn_without_errors_and_fit_the_screen(
    site: Site, day: Day, width: int, scheme: str
) -> None:
    visit = site.visit(site.scenario.operator, width=width, scheme=scheme)
    page = visit.go("/lending/")
    wait_until_drawn(page)
    expect(page.locator("[data-panel] .js-plotly-plot .main-svg").first).to_be_visible()
    expect(page.locator("[data-panel] .js-plotly-plot")).to_have_count(3)
    expect(page.locator("[data-note]").first).to_contain_text("the load is an emulated one")
    expect(page.locator('[data-fragment="standing"]')).to_contain_text(
        "is not measured. Its source: emulated: a wave with bursts"
    )
    assert page.locator("html").evaluate("element => element.scrollWidth") <= width
    page = visit.go(f"/lending/orders/{max(day.reclaims, key=lambda order: order.count).pk}/")
    expect(page.get_by_text("carried out")).to_be_visible()
    assert page.locator("html").evaluate("element => element.scrollWidth") <= width
    visit.expect_no_trouble()


@pytest.mark.usefixtures("without_figures")
def test_an_operator_lends_asks_back_and_stops_lending_by_hand(site: Site, day: Day) -> None:
    visit = site.visit(site.scenario.operator)
    page = visit.go("/lending/")
    InferenceCluster.objects.update(headroom_fraction=0.0, minimum_hold_seconds=0.0)
    name = day.home()[0].name
    page.get_by_role("button", name="Lend servers").click()
    page.get_by_label("Servers at home").select_option(name)
    page.get_by_role("button", name="Lend", exact=True).click()
    expect(page.locator(".toast")).to_contain_text("1 server offered to training.")
    order = LoanOrder.objects.get(source=OrderSource.OPERATOR)
    assert (order.server_names, order.created_by) == ([name], site.scenario.operator.username)
    expect(page.locator(f'a[href*="{order.pk}"]')).to_be_visible()
    page.get_by_role("button", name="Ask servers back").click()
    page.get_by_label("Servers", exact=True).fill("3")
    page.get_by_label("Wanted in minutes").fill("20")
    page.get_by_role("button", name="Ask back", exact=True).click()
    expect(page.locator(".toast").last).to_contain_text("3 servers asked back.")
    asked = ReclaimOrder.objects.get(count=3, state="pending")
    assert (asked.wanted_by - asked.created_at).total_seconds() == pytest.approx(1200, abs=60)
    page.get_by_role("button", name="Stop lending").click()
    page.locator("#confirm-yes").click()
    expect(page.get_by_role("button", name="Allow lending")).to_be_visible()
    assert not InferenceCluster.objects.get(name="serving").lending
    visit.expect_no_trouble()
    sent = _refused(page)
    assert UUID(sent["id"]).version == 4
    assert sent["count"] == 1


@pytest.mark.usefixtures("without_figures")
def test_orders_and_usage_appear_when_the_stream_says_so(site: Site, day: Day) -> None:
    InferenceCluster.objects.update(headroom_fraction=0.0, minimum_hold_seconds=0.0)
    inference = InferenceCluster.objects.get(name="serving")
    visit = site.visit(site.scenario.operator)
    _never_poll(visit.page)
    page = visit.go("/lending/")
    wait_until_drawn(page)
    expect(page.locator("#live")).to_have_attribute("data-state", "live")

    loan, _ = loan_order_create(
        inference_cluster=inference,
        order_id=uuid4(),
        server_names=[day.home()[0].name],
        source=OrderSource.SCHEDULER,
    )
    row = page.locator("tr", has=page.locator(f'a[href*="{loan.pk}"]'))
    _expect_soon(row, "Pending")
    carry_out_loans(inference, timezone.now())
    _expect_soon(row, "Done")

    asked, _ = reclaim_order_create(
        inference_cluster=inference,
        order_id=uuid4(),
        count=1,
        wanted_by=timezone.now() + timedelta(days=1),
        source=OrderSource.SCHEDULER,
    )
    row = page.locator("tr", has=page.locator(f'a[href*="{asked.pk}"]'))
    _expect_soon(row, "not chosen yet")

    sample = {"period_ends_at": timezone.now(), "usage": 0.4321}
    usage_report(inference_cluster=inference, samples=[sample])
    standing = page.locator('[data-fragment="standing"]')
    _expect_soon(standing, "43.2")
    expect(standing).not_to_contain_text("is not measured")
    forecast_usage(inference.pk)
    _expect_soon(standing, "expected next (persistence)")
    visit.expect_no_trouble()


def test_an_orders_page_follows_each_of_its_steps(site: Site, day: Day) -> None:
    inference = InferenceCluster.objects.get(name="serving")
    order = ReclaimOrder.objects.create(
        inference_cluster=inference, source=OrderSource.SCHEDULER, count=0, wanted_by=timezone.now()
    )
    visit = site.visit(site.scenario.operator)
    _never_poll(visit.page)
    page = visit.go(f"/lending/orders/{order.pk}/")
    expect(page.locator("#live")).to_have_attribute("data-state", "live")
    timeline = page.locator('[data-fragment="timeline"]')
    expect(timeline).not_to_contain_text("Chosen")
    begin_reclaims(inference, timezone.now())
    _expect_soon(timeline, "Chosen")
    reclaim_confirm(order=order, server_names=[])
    _expect_soon(page.locator('[data-fragment="summary"]'), "Confirmed")
    visit.expect_no_trouble()


def _expect_soon(part: Locator, text: str) -> None:
    """Wait until a part of the page contains `text`. A part is read once a second at most, of the page's
    clock."""

    def contains() -> bool:
        part.page.clock.fast_forward(1_000)
        return any(text in shown for shown in part.all_inner_texts())

    wait_until(contains, f"{text} is shown")


def _never_poll(page: Page) -> None:
    """Let the page poll only once an hour: its changes come from the stream."""
    page.clock.install()
    page.add_init_script(
        """document.addEventListener("readystatechange", () => {
          for (const element of document.querySelectorAll("[data-fragment]"))
            element.dataset.pollSeconds = "3600";
        });"""
    )


def _refused(page: Page) -> dict[str, Any]:
    """Reclaim a server from an API that refuses; return the request's body."""
    bodies: list[dict[str, Any]] = []

    def refuse(route: Route) -> None:
        bodies.append(json.loads(route.request.post_data or "{}"))
        problem = {"title": "Conflict", "detail": "No server is on loan.", "code": "conflict"}
        route.fulfill(status=409, content_type="application/problem+json", body=json.dumps(problem))

    page.route("**/reclaim-orders/", refuse)
    page.get_by_role("button", name="Ask servers back").click()
    page.get_by_role("button", name="Ask back", exact=True).click()
    expect(page.locator(".toast.bad")).to_contain_text("No server is on loan.")
    return bodies[0]
