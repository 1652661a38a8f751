"""The pages on simulations: for operators, from the form to the comparison, in HTML and in a real browser."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from playwright.sync_api import expect

from simulation.models import SimulationRun, SimulationStudy
from simulation.policies import POLICIES
from simulation.selectors.studies import COMPARISON_FIGURES
from simulation.services import runs
from simulation.services.comparing import refresh_comparison
from simulation.services.executing import execute_run
from tests import factories
from tests.dashboard.scenario import Scenario
from tests.dashboard.site import Site
from tests.dashboard.take_screenshots import wait_until_drawn

LogIn = Callable[[Any], Client]


@pytest.fixture
def store(settings: Any, tmp_path: Path) -> None:
    settings.CHECKPOINT_URL = f"file://{tmp_path}/store"


@pytest.fixture
def study(db: None) -> SimulationStudy:
    made: SimulationStudy = factories.SimulationStudyFactory.create(name="more servers?")
    for policy in ("punctual", "edf"):
        factories.SimulationRunFactory.create(study=made, policy=policy)
    return made


def addresses(study: SimulationStudy) -> list[str]:
    return [
        "/simulations/",
        "/simulations/?fragment=studies",
        f"/simulations/{study.pk}/",
        f"/simulations/{study.pk}/?fragment=runs",
        f"/simulations/{study.pk}/?fragment=comparison",
        *(f"/simulations/{study.pk}/panels/{name}/" for name in COMPARISON_FIGURES),
    ]


def finish(study: SimulationStudy) -> None:
    for run in study.runs.all():
        execute_run(run.pk)
    refresh_comparison(study.pk)


def test_every_page_is_there_for_an_operator(
    study: SimulationStudy, scenario: Scenario, as_user: LogIn
) -> None:
    client = as_user(scenario.operator)
    for address in addresses(study):
        assert client.get(address).status_code == 200, address
    assert client.get(f"/simulations/{study.pk}/panels/horoscope/").status_code == 404
    assert client.get(f"/simulations/{study.pk + 999}/").status_code == 404


def test_other_users_are_refused_with_the_reason(
    study: SimulationStudy, scenario: Scenario, as_user: LogIn
) -> None:
    client = as_user(scenario.owner)
    for address in [*addresses(study), f"/simulations/{study.pk + 999}/"]:
        answer = client.get(address)
        assert answer.status_code == 403, address
        assert "for operators" in answer.content.decode(), address
    assert "/simulations/" not in client.get("/").content.decode()
    assert "/simulations/" in as_user(scenario.operator).get("/").content.decode()


def test_without_a_session_pages_redirect_and_panels_answer_401(
    study: SimulationStudy, client: Client
) -> None:
    for address in addresses(study):
        answer = client.get(address)
        if "fragment" in address or "panels" in address:
            assert answer.status_code == 401, address
        else:
            assert answer.headers["Location"].startswith("/login/?next="), address


def test_pages_accept_only_get(study: SimulationStudy, scenario: Scenario, as_user: LogIn) -> None:
    client = as_user(scenario.operator)
    for address in addresses(study):
        for method in (client.post, client.put, client.patch, client.delete):
            assert method(address).status_code == 405, address


def test_the_form_offers_every_policy_and_trace(scenario: Scenario, as_user: LogIn) -> None:
    page = as_user(scenario.operator).get("/simulations/").content.decode()
    for policy in POLICIES:
        assert f'name="policies" value="{policy}"' in page
    assert '<option value="elasticflow"' in page
    assert "The live cluster as it is now" in page


def test_the_form_offers_usage_that_is_there_and_says_who_borrows(
    scenario: Scenario, as_user: LogIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PUNCTUAL_TRACES", str(tmp_path))
    page = as_user(scenario.operator).get("/simulations/").content.decode()
    assert '<option value="bursty"' in page
    assert "helios" not in page
    assert re.search(r'value="punctual"[^>]* data-borrows', page)
    assert not re.search(r'value="edf"[^>]* data-borrows', page)


def test_figures_of_loans_are_shown_where_servers_are_lent(
    study: SimulationStudy, scenario: Scenario, as_user: LogIn
) -> None:
    client = as_user(scenario.operator)
    assert "Reclaims and their cost" not in client.get(f"/simulations/{study.pk}/").content.decode()
    lending = factories.SimulationStudyFactory.create(
        inference_usage="daily",
        inference_gpu_type="T4",
        reclaim="improved",
        headroom=0.02,
        forecaster="none",
        notes=["<b>mind</b> this"],
    )
    factories.SimulationRunFactory.create(study=lending, inference_servers=8)
    page = client.get(f"/simulations/{lending.pk}/").content.decode()
    assert "Reclaims and their cost" in page
    assert "4 + 8 servers" in page
    assert "&lt;b&gt;mind&lt;/b&gt; this" in page
    assert "beside 8 inference servers" in client.get("/simulations/").content.decode()


def test_an_empty_installation_offers_traces_alone(db: None, as_user: LogIn) -> None:
    page = as_user(factories.UserFactory.create(is_operator=True)).get("/simulations/").content.decode()
    assert "no server is connected" in page
    assert "No study yet" in page


def test_texts_from_users_and_workers_are_escaped(
    study: SimulationStudy, scenario: Scenario, as_user: LogIn
) -> None:
    hostile = "<script>alert(1)</script>"
    SimulationStudy.objects.filter(pk=study.pk).update(name=hostile)
    factories.SimulationRunFactory.create(study=study, policy="tiresias", state="failed", error=hostile)
    client = as_user(scenario.operator)
    for address in addresses(study):
        assert hostile not in client.get(address).content.decode(), address


def test_figures_say_that_they_wait_for_a_run(
    study: SimulationStudy, scenario: Scenario, as_user: LogIn
) -> None:
    drawn = as_user(scenario.operator).get(f"/simulations/{study.pk}/panels/fates/").json()
    assert drawn == {"empty": "Drawn as soon as a run is done."}


def test_the_list_has_a_constant_number_of_queries(
    study: SimulationStudy, scenario: Scenario, as_user: LogIn, django_assert_max_num_queries: Any
) -> None:
    client = as_user(scenario.operator)
    for _ in range(5):
        factories.SimulationRunFactory.create()
    with django_assert_max_num_queries(9):
        client.get("/simulations/?fragment=studies")


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("store")
def test_finished_runs_are_compared_in_a_table_and_figures(study: SimulationStudy, as_user: LogIn) -> None:
    finish(study)
    client = as_user(factories.UserFactory.create(is_operator=True))
    page = client.get(f"/simulations/{study.pk}/").content.decode()
    assert "Deadlines met" in page
    assert re.search(r'<th class="number">punctual</th><th class="number">edf</th>', page)
    assert f"/api/v1/simulations/{study.pk}/report/" in page
    for name in COMPARISON_FIGURES:
        drawn = client.get(f"/simulations/{study.pk}/panels/{name}/").json()
        assert "note" in drawn
        assert "figure" in drawn or drawn["empty"]


@pytest.mark.usefixtures("store")
def test_lost_results_are_reported_on_the_page(
    study: SimulationStudy, scenario: Scenario, as_user: LogIn
) -> None:
    SimulationStudy.objects.filter(pk=study.pk).update(comparison_key="simulations/1/gone", compared_runs=[1])
    client = as_user(scenario.operator)
    assert "gone from the store" in client.get(f"/simulations/{study.pk}/").content.decode()
    assert "gone" in client.get(f"/simulations/{study.pk}/panels/fates/").json()["empty"]
    detail = client.get(f"/api/v1/simulations/{study.pk}/").json()
    assert detail["comparison"]["warnings"]


# In a browser ------------------------------------------------------------------------------------------


@pytest.mark.browser
@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("store")
@pytest.mark.slow
def test_a_study_is_started_in_the_form_followed_and_compared(site: Site) -> None:
    visit = site.visit(site.scenario.operator)
    page = visit.go("/simulations/")
    page.locator("select[name=trace]").select_option("elasticflow")
    page.get_by_label("Servers", exact=True).fill("2, 4")
    page.get_by_label("GPUs per server").fill("4")
    page.get_by_label("Jobs at most").fill("15")
    for policy in ("elasticflow", "edf"):
        page.get_by_label(policy, exact=True).set_checked(policy == "edf")
    expect(page.get_by_label("Their usage")).to_be_hidden()
    expect(page.get_by_text("4 runs", exact=True)).to_be_visible()
    page.get_by_label("Servers", exact=True).fill("2")
    expect(page.get_by_text("2 runs", exact=True)).to_be_visible()
    page.get_by_label("Inference servers").fill("0, 8")
    expect(page.get_by_text("3 runs", exact=True)).to_be_visible()
    expect(
        page.get_by_text("Run without loans, because borrowed servers are of no use to them: edf.")
    ).to_be_visible()
    expect(page.locator("select[name=inference_usage] option[value=measured]")).to_be_disabled()
    page.get_by_label("Their usage").select_option("bursty")
    page.get_by_label("Share never lent").fill("0.1")
    page.get_by_text("More", exact=True).click()
    page.get_by_label("Share without deadline").fill("0.5")
    page.get_by_role("button", name="Start").click()
    page.wait_for_url(re.compile(r"/simulations/\d+/$"))
    study = SimulationStudy.objects.get()
    assert (study.inference_usage, study.headroom, study.inference_gpu_type) == ("bursty", 0.1, "T4")
    expect(page.get_by_text("edf uses no borrowed servers")).to_be_visible()
    expect(page.locator(".runs tbody tr")).to_have_count(3)
    expect(page.locator(".runs").get_by_text("2 + 8 servers")).to_be_visible()
    wait_until_drawn(page)
    expect(page.locator("#live")).to_have_attribute("data-state", "live")
    first = study.runs.earliest("pk")
    attempt = runs.RUNS.attempt(first.pk)
    assert attempt is not None
    attempt.renew(jobs_ended=6, jobs_total=15, simulated_seconds=7200.0)
    expect(page.locator(f'[data-run="{first.pk}"]')).to_contain_text("6 of 15 jobs")
    SimulationRun.objects.filter(pk=first.pk).update(lease_expires_at=timezone.now())
    runs.sweep_runs()
    finish(study)
    expect(page.locator(".runs .badge", has_text="Done")).to_have_count(3)
    expect(page.locator(".compared thead th")).to_have_count(4)
    expect(
        page.locator(".compared thead th").filter(has_text="punctual, 2 + 8 servers").first
    ).to_be_visible()
    expect(page.locator(".compared").get_by_text("Servers on loan, mean").first).to_be_visible()
    for name in ("on_loan", "reclaims"):
        expect(page.locator(f"[data-panel$='/panels/{name}/'] .js-plotly-plot")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("link", name="loans", exact=True).click()
    assert download.value.suggested_filename == f"simulation-{study.pk}-punctual-2+8-loans.parquet"
    with page.expect_download() as download:
        page.get_by_role("link", name="HTML report").click()
    assert download.value.suggested_filename == f"simulation-{study.pk}.html"
    page.set_viewport_size({"width": 390, "height": 844})
    page.emulate_media(color_scheme="dark")
    for path in ("/simulations/", f"/simulations/{study.pk}/"):
        visit.go(path)
        wait_until_drawn(page)
        width = page.locator("html").evaluate("element => element.scrollWidth")
        assert width <= 390, f"{path} is {width} px wide"
    visit.expect_no_trouble()


@pytest.mark.browser
@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("store")
def test_runs_are_cancelled_and_studies_deleted_by_buttons(site: Site) -> None:
    study = factories.SimulationStudyFactory.create(name="doomed")
    run = factories.SimulationRunFactory.create(study=study)
    factories.SimulationRunFactory.create(study=study, policy="edf")
    page = site.visit(site.scenario.operator).go(f"/simulations/{study.pk}/")
    page.locator(f'[data-run="{run.pk}"]').get_by_role("button", name="Cancel").click()
    expect(page.locator(f'[data-run="{run.pk}"] .badge')).to_have_text("Cancelled")
    page.get_by_role("button", name="Delete").first.click()
    page.locator("#confirm-yes").click()
    page.wait_for_url(re.compile(r"/simulations/$"))
    expect(page.get_by_text("No study yet")).to_be_visible()
    # Refusals of the API are shown at the form.
    page.get_by_label("Servers", exact=True).fill("100000")
    page.get_by_role("button", name="Start").click()
    expect(page.locator("[data-problem]")).to_contain_text("GPUs")
    assert not SimulationStudy.objects.exists()
