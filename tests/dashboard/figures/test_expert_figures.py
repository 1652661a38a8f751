"""Figures about a job's mixture-of-experts layers, and the page that shows them."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import expect

from dashboard.figures import JOB_DETAIL_PANELS
from dashboard.figures.jobs import expert_homes, expert_load, expert_rows, job_metrics, job_tiers
from scheduling.models import Job, JobExperts
from scheduling.selectors.jobs.job_page import MetricSeries
from tests.dashboard.site import Site
from tests.dashboard.take_screenshots import wait_until_drawn

LAYER: dict[str, Any] = {
    "name": "blocks.0.<b>mixture", "tokens": 100, "rows": [120, 60, 20], "dropped": [20, 0, 0],
    "load": [1.8, 0.9, 0.3], "two_expert_share": 1.0, "dropped_share": 0.1, "balance_loss": 1.2,
    "hosts": [[0], [0, 1], []],
}  # fmt: skip
SMALL: dict[str, Any] = {
    **LAYER, "name": "", "rows": [100, 100], "dropped": [0, 0], "load": [1.0, 1.0], "hosts": [[1], [1]],
    "two_expert_share": 0.5, "balance_loss": 1.0,
}  # fmt: skip
TIMING: dict[str, Any] = {
    "share": 0.4, "iterations": 8, "iteration_seconds": 0.05, "all_to_all_seconds": 0.02, "seconds": 0.06,
    "backward_seconds": 0.02,
    "spans": [
        {"layer": 0, "begin_seconds": 0.001, "end_seconds": 0.005},
        {"layer": 1, "begin_seconds": 0.01, "end_seconds": 0.012},
        {"layer": 0, "begin_seconds": 0.03, "end_seconds": 0.04},
    ],
}  # fmt: skip
WORKERS = [{"rank": rank, "server": f"node-{'ab'[rank]}", "gpu": 0} for rank in range(2)]


def told(**changes: Any) -> dict[str, Any]:
    return {
        "generation": 1, "iteration": 140, "iterations": 100, "layers": [LAYER, SMALL], "other_layers": 0,
        "workers": WORKERS, "all_to_all": TIMING, "decisions": [], "history": [], **changes,
    }  # fmt: skip


def test_loads_are_a_row_for_each_layer_that_may_end_early() -> None:
    drawn = expert_load.figure(told())
    assert drawn is not None
    (heat,) = drawn.data
    assert [list(row) for row in heat.z] == [[1.8, 0.9, 0.3], [1.0, 1.0, None]]
    assert list(drawn.layout.yaxis.ticktext) == ["blocks.0.&lt;b&gt;mixture  ", "the model  "]
    assert "120 rows<br>20 of them dropped" in heat.customdata[0][0]
    words = expert_load.caption(told(other_layers=2))
    for expected in ("41 to 140", "75% of the tokens", "5.0% of the rows", "1.00 to 1.20", "2 more layers"):
        assert expected in words


def test_tiers_show_hits_and_stalls() -> None:
    values: dict[str, list[float | None]] = {
        "loss": [1.0, 0.5], "moe/tier_hits": [0.5, None], "moe/tier_stall_seconds": [0.25, 0.75],
        "moe/tier_bytes_read": [2e6, 4e6], "moe/tier_bytes_written": [1e6, 1e6],
    }  # fmt: skip
    series = MetricSeries([10, 20], values, [1.0, 1.0], [2, 2], [(0, 2)])
    drawn = job_tiers.figure(series)
    assert drawn is not None
    assert [list(line.y) for line in drawn.data] == [[0.5, None], [0.25, 0.75]]
    words = job_tiers.caption(series)
    assert "50% of the states were found" in words
    assert "waited 0.5 s; all workers read 3.0 MB from disk and wrote 1.0 MB." in words
    metrics = job_metrics.figure(series)
    assert metrics is not None
    assert [line.name for line in metrics.data] == ["loss"]
    assert JOB_DETAIL_PANELS["tiers"].is_absent is not None
    assert JOB_DETAIL_PANELS["tiers"].is_absent(MetricSeries([], {}, [], [], []))


def test_experts_have_the_colour_of_their_server() -> None:
    drawn = expert_homes.figure(told())
    assert drawn is not None
    (heat,) = drawn.data
    assert [list(row) for row in heat.z] == [[0, -1, -2], [1, 1, None]]
    assert list(heat.text[0]) == ["0", "0+1", "all"]
    assert "worker 0 on node-a:0<br>worker 1 on node-b:0" in heat.customdata[0][1]
    assert "node-a: 0; node-b: 1" in expert_homes.caption(told())
    everywhere = told(layers=[{**LAYER, "hosts": [[], [], []]}])
    assert expert_homes.figure(everywhere) is None
    assert expert_homes.figure(told(layers=[{**LAYER, "hosts": None}])) is None


def test_all_to_alls_are_bars_of_an_iteration() -> None:
    drawn = expert_rows.figure(told())
    assert drawn is not None
    forward, backward, first, second = drawn.data
    assert (list(forward.x), list(backward.base)) == ([20.0], [20.0])
    assert list(backward.x) == pytest.approx([40.0])
    assert (first.name, list(first.base)) == ("All-to-all, blocks.0.&lt;b&gt;mixture", [1.0, 30.0])
    assert list(second.x) == pytest.approx([2.0])
    assert "40% of an iteration: 20.0 of 50.0 ms" in expert_rows.caption(told())
    untimed = told(all_to_all=None)
    assert expert_rows.figure(untimed) is None
    assert expert_rows.caption(untimed) == "Not measured yet."
    everywhere = told(all_to_all=None, layers=[{**LAYER, "hosts": [[], [], []]}])
    assert "No rows are exchanged" in expert_rows.caption(everywhere)


def test_layers_too_large_to_report_are_named() -> None:
    large = told(layers=[], other_layers=3, all_to_all=None)
    assert expert_load.figure(large) is None
    assert "3 layers are not reported" in expert_load.caption(large)


EXPERT_PANELS = [name for name in JOB_DETAIL_PANELS if name.startswith("expert-")]


def reported(job: Job) -> None:
    """Give the job a record of its workers."""
    layers = [
        {**{name: layer[name] for name in ("name", "tokens", "rows", "dropped", "balance_loss", "hosts")},
         "two_expert_tokens": layer["two_expert_share"] * 100}
        for layer in (LAYER, SMALL)
    ]  # fmt: skip
    timing = {name: value for name, value in TIMING.items() if name != "share"}
    decision = {
        "generation": 1, "iteration": 12, "from_factor": 1, "to_factor": 2, "ffn_seconds": 0.01,
        "all_to_all_seconds": 0.02, "reason": "expert computation is <i>shorter</i> than the all-to-all",
    }  # fmt: skip
    JobExperts.objects.create(
        job=job,
        generation=job.last_generation,
        iteration=140,
        latest={
            "iteration": 140, "iterations": 100, "told_at": "2026-11-28T01:00:00+00:00", "layers": layers,
            "other_layers": 0, "timing": timing,
        },
        decisions=[decision],
    )  # fmt: skip


@pytest.mark.browser
@pytest.mark.django_db(transaction=True)
def test_a_page_shows_experts_once_they_are_reported(site: Site) -> None:
    job = site.scenario.spanning
    visit = site.visit(site.scenario.owner)
    page = visit.go(f"/jobs/{job.id}/")
    page.locator("#details > summary").click()
    wait_until_drawn(page)
    for name in EXPERT_PANELS:
        expect(page.locator(f'[data-panel$="/{name}/"]')).to_be_hidden()
    expect(page.locator('[data-fragment="packing"]')).to_be_hidden()
    expect(page.locator("#live")).to_have_attribute("data-state", "live")
    reported(job)
    site.publish(f"job:{job.id}", "metrics")
    for name in EXPERT_PANELS:
        expect(page.locator(f'[data-panel$="/{name}/"] .js-plotly-plot .main-svg').first).to_be_visible()
    expect(page.get_by_text("40% of an iteration")).to_be_visible()
    expect(
        page.get_by_text("Iteration 12: 1 → 2, since expert computation is <i>shorter</i>")
    ).to_be_visible()
    visit.expect_no_trouble()
