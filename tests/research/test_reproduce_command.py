"""`manage.py reproduce elasticflow` from start to report, on a trace of six jobs."""

from __future__ import annotations

import io
import json
import re

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from playwright.sync_api import expect, sync_playwright

from research.elasticflow.figures import FIGURES
from research.elasticflow.specs import ElasticFlowSpec
from simulation.workloads import public_traces
from simulation.workloads.public_traces import VARIABLE
from tests.dashboard.chromium import open_chromium
from tests.research.elasticflow.small import JOBS, traces


@pytest.fixture
def small_traces(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(traces(tmp_path / "traces")))


def reproduce(folder, *options):
    said = io.StringIO()
    call_command(
        "reproduce", "elasticflow", "--folder", str(folder), "--json", str(folder / "out.json"), *options,
        stdout=said, stderr=io.StringIO()
    )  # fmt: skip
    return said.getvalue(), json.loads((folder / "out.json").read_text())


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reproduced")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(traces(folder / "traces")))
        return *reproduce(folder / "made", "--only", "fig7,fig12"), folder / "made"


def test_published_values_stand_beside_ours_with_how_each_was_made(made):
    _, report, _ = made
    assert [figure["name"] for figure in report["figures"]] == ["fig6b", "fig12"]
    rows = {(row["policy"], row["variant"]): row for row in report["figures"][0]["rows"]}
    assert len(rows) == 10
    flow, tiresias = rows["elasticflow", "newcomers one by one"], rows["tiresias", ""]
    assert (tiresias["published"], flow["published"]) == (0.4564, 0.6667)
    assert tiresias["ours_over_published"] == pytest.approx(tiresias["ours"] / 0.4564)
    assert tiresias["elasticflow_over_this_published"] == pytest.approx(0.6667 / 0.4564)
    assert tiresias["elasticflow_over_this_ours"] == pytest.approx(flow["ours"] / tiresias["ours"])
    for row in rows.values():
        assert row["on_time"] + row["declined"] + row["late"] == row["slo_jobs"] == len(JOBS)
        assert row["ours"] == pytest.approx(row["on_time"] / len(JOBS))
        assert re.match(
            r"simulated, policy \w+; trace testbed_195job; seed 0; 16 x 8 GPUs; slot 240 s; pauses measured",
            row["made"],
        )


def test_each_deviation_is_explained_or_counted_as_unexplained(made):
    _, report, _ = made
    beyond = [row for figure in report["figures"] for row in figure["rows"] if row["beyond_band"]]
    assert beyond
    assert report["counts"]["beyond_band"] == len(beyond)
    assert report["counts"]["unexplained"] == sum(not row["explanations"] for row in beyond)
    assert all(
        explanation["fact"] and explanation["evidence"]
        for row in beyond
        for explanation in row["explanations"]
    )


def test_unmet_checks_are_reported_without_failing(made):
    said, report, _ = made
    checks = {check["name"]: check["met"] for check in report["figures"][0]["checks"]}
    assert checks["ElasticFlow one by one, jobs on time"] is False  # six jobs cannot be 170
    assert checks["No admitted job is late without pauses"] is True
    assert "NOT MET  ElasticFlow one by one, jobs on time: " in said


def test_the_published_pauses_stand_beside_the_pause_model(made):
    _, report, _ = made
    (pause,) = report["figures"][1]["tables"][0]["rows"]
    assert (pause["Published"], pause["Charged here"]) == ("1.88 s", "6 s")


def test_the_second_time_nothing_is_simulated(made, small_traces):
    said, report, folder = made
    assert "11 runs, 0 of them from before" in said
    said, again = reproduce(folder, "--only", "fig6b,fig12")
    assert "11 runs, 11 of them from before" in said
    assert again["figures"] == report["figures"]


def test_the_page_needs_nothing_from_elsewhere_and_shows_every_row(made):
    _, report, folder = made
    page = (folder / "report.html").read_text()
    own = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r'(src|href)="(?!#)', own)
    assert own.count("simulated, policy ") >= len(report["figures"][0]["rows"])


def test_without_traces_only_trace_free_figures_run(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(public_traces, "DEFAULT_FOLDER", tmp_path / "nothing")
    _, report = reproduce(tmp_path / "made", "--only", "fig6b,fig8b,vectors")
    assert [figure["name"] for figure in report["figures"]] == ["vectors"]
    (text,) = report["left_out"]
    assert "fig6b, fig8b is left out" in text
    assert "microsoft/elasticflow-traces" in text
    assert "pkusys/ElasticFlow" in text
    assert {check["met"] for check in report["figures"][0]["checks"]} == {True, None}


def test_figures_that_need_no_trace_are_the_synthetic_ones():
    assert {name for name, figure in FIGURES.items() if not figure.needs_traces} == {
        "fig9", "fig10", "fig11", "vectors",
    }  # fmt: skip
    for figure in FIGURES.values():
        for full in (False, True):
            specs = [spec for spec in figure.runs(full) if isinstance(spec, ElasticFlowSpec)]
            assert figure.needs_traces or all(spec.synthetic for spec in specs)


def test_the_full_version_covers_the_short_one():
    for figure in FIGURES.values():
        assert set(figure.runs(False)) <= set(figure.runs(True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--only", "fig99"], "there is no figure 'fig99'; there are authors, fig10"),
        (["--only", ","], "names no figure"),
        (["--jobs", "0"], "--jobs must be at least 1"),
        (["--only", "vectors", "--report", "/proc/nowhere/report.html"], "nothing can be written"),
    ],
)
def test_impossible_options_are_refused_in_one_line(tmp_path, options, message):
    with pytest.raises(CommandError, match=re.escape(message)):
        call_command("reproduce", "elasticflow", "--folder", str(tmp_path), *options, stderr=io.StringIO())


def test_missing_traces_are_named_in_an_error_beside_the_report(small_traces, tmp_path):
    with pytest.raises(CommandError, match=r"11 runs are missing: trace t4_195job is not on this machine"):
        reproduce(tmp_path / "made", "--only", "fig8a")
    assert (tmp_path / "made" / "report.html").is_file()


@pytest.mark.browser
@pytest.mark.slow  # reports of runs are drawn by the same script, in every run
@pytest.mark.parametrize(
    "size", [pytest.param((1400, 900), id="desktop"), pytest.param((390, 844), id="phone")]
)
def test_a_real_browser_draws_every_figure_of_the_page(made, chromium, size):
    *_, folder = made
    with sync_playwright() as playwright:
        browser = open_chromium(playwright)
        page = browser.new_page(viewport={"width": size[0], "height": size[1]})
        troubles: list[str] = []
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on(
            "console", lambda said: troubles.append(said.text) if said.type in ("error", "warning") else None
        )
        page.goto((folder / "report.html").as_uri())
        figures = page.locator("[data-figure]")
        assert figures.count() == 3
        for number in range(figures.count()):
            figures.nth(number).scroll_into_view_if_needed()
            expect(figures.nth(number)).to_have_attribute("data-drawn", "yes", timeout=60_000)
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
        assert troubles == []
        browser.close()
