"""Figures are pure functions: data in, a figure out, or None if there is nothing to draw."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plotly.utils import PlotlyJSONEncoder

from cluster.choices import DrainState, ServerState
from cluster.selectors.utilisation import USES, UtilisationSeries
from dashboard.colours import BAD, BUSY_ELSEWHERE, JOB_PALETTE, job_colours
from dashboard.figures.cluster import deadlines, gpus_by_server, slack, utilisation
from dashboard.figures.jobs import job_gpus, job_metrics, job_progress, scaling_curve
from dashboard.figures.panel import plain_text
from scheduling.models import CurveLevel
from scheduling.selectors.cluster.occupancy import GpuCell, Occupant, ServerCells
from scheduling.selectors.jobs.job_page import (
    GpuPhase,
    GpusOverTime,
    JobProgress,
    MetricSeries,
    ProgressPoint,
)
from scheduling.selectors.jobs.job_times import PlannedPiece
from scheduling.selectors.jobs.overview import JobSlack, PromiseCounts
from scheduling.selectors.jobs.scaling_curve import Curve

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def as_json(figure: Any) -> dict[str, Any]:
    """Return the figure as the browser gets it; also proves that it is serialisable."""
    assert figure is not None
    return dict(json.loads(json.dumps(figure.to_plotly_json(), cls=PlotlyJSONEncoder, allow_nan=False)))


def server(*occupants: Occupant | None, state: ServerState = ServerState.UP) -> ServerCells:
    gpus = tuple(GpuCell(index, "emulated-a100", True, True, held) for index, held in enumerate(occupants))
    return ServerCells(1, "node-a", state, DrainState.NONE, gpus)


def test_utilisation_stacks_the_uses_that_occur() -> None:
    uses = {use: [0.0, 0.0] for use in USES} | {"promised": [4.0, 2.0], "idle": [4.0, 6.0]}
    drawn = as_json(utilisation.figure(UtilisationSeries([NOW, at(5)], uses, [1, 1], [0, 0], [8, 8])))
    assert [trace["name"] for trace in drawn["data"]] == ["Promised", "Idle"]
    assert drawn["layout"]["yaxis"]["range"] == [0, 8]


def test_gpus_have_their_jobs_colour_and_foreign_ones_are_grey() -> None:
    mine = Occupant("abcdefghjkmn", "mine", "training", True)
    foreign = Occupant(None, None, "training", False)
    drawn = as_json(gpus_by_server.figure([server(mine, foreign), server(None, mine)]))
    trace = drawn["data"][0]
    assert trace["z"][0][0] == trace["z"][1][1] != trace["z"][0][1]
    assert trace["text"] == [["mine", "busy"], ["", "mine"]]
    assert trace["customdata"][0][0][0] == "abcdefghjkmn"
    assert trace["customdata"][0][1][0] == ""
    assert BUSY_ELSEWHERE in {colour for _, colour in trace["colorscale"]}


def test_servers_with_different_numbers_of_gpus_share_a_map() -> None:
    drawn = as_json(gpus_by_server.figure([server(None), server(None, None, None), server()]))
    assert [len(row) for row in drawn["data"][0]["z"]] == [3, 3, 3]


@given(st.sets(st.text(alphabet="abcdefgh23456789", min_size=12, max_size=12), max_size=len(JOB_PALETTE)))
def test_jobs_shown_together_have_different_colours(job_ids: set[str]) -> None:
    colours = job_colours(job_ids)
    assert len(set(colours.values())) == len(job_ids)
    assert colours == job_colours(sorted(job_ids, reverse=True))


def test_deadlines_show_zero_missed_and_hide_void_when_there_is_none() -> None:
    drawn = as_json(deadlines.figure(PromiseCounts(met=3, missed=0, void=0, declined=1, open=2, at_risk=0)))
    counts = dict(zip(drawn["data"][0]["y"], drawn["data"][0]["x"], strict=True))
    assert counts == {"Met": 3, "Missed": 0, "At risk": 0, "Open": 2, "Declined": 1}
    assert deadlines.figure(PromiseCounts(0, 0, 0, 0, 0, 0)) is None


def test_late_jobs_are_red_and_left_of_zero() -> None:
    slacks = [JobSlack("a", "late", -30, True), JobSlack("b", "fine", 100, True)]
    bars = as_json(slack.figure(slacks))["data"][0]
    for place, colour in zip(bars["x"], bars["marker"]["color"], strict=True):
        assert (colour == BAD) == (place < 0)


@given(st.lists(st.floats(-1e6, 1e6, allow_nan=False), min_size=1, max_size=200))
def test_every_job_is_in_the_slack_histogram_once(seconds: list[float]) -> None:
    bars = as_json(slack.figure([JobSlack(str(n), "j", value, True) for n, value in enumerate(seconds)]))[
        "data"
    ][0]
    assert sum(bars["y"]) == len(seconds)
    assert len(bars["y"]) <= 60


def test_progress_ends_at_the_planned_finish_and_shows_the_deadline() -> None:
    data = JobProgress(
        measured=[ProgressPoint(at(-100), 0), ProgressPoint(NOW, 500)],
        projected=[ProgressPoint(NOW, 500), ProgressPoint(at(90), 1000)],
        max_iterations=1000,
        deadline_at=at(120),
        now=NOW,
    )
    drawn = as_json(job_progress.figure(data))
    assert [trace["name"] for trace in drawn["data"]] == ["Done", "Planned"]
    assert drawn["layout"]["annotations"][0]["text"] == "deadline"
    assert job_progress.figure(JobProgress([], [], 1000, None, NOW)) is None


def test_gpus_over_time_fall_to_zero_only_while_nothing_trains() -> None:
    data = GpusOverTime(
        actual=[
            GpuPhase(at(-100), at(-60), 2, "start"),
            GpuPhase(at(-61), at(-30), 4, "grow"),
            GpuPhase(at(-10), None, 1, "resume"),
        ],
        planned=[PlannedPiece(NOW, at(50), 1), PlannedPiece(at(50), at(80), 4)],
        promised=[PlannedPiece(at(-100), at(80), 1)],
        deadline_at=at(100),
        now=NOW,
    )
    had, planned, promised = as_json(job_gpus.figure(data))["data"]
    assert had["y"] == [2, 4, 0, 1, 1]
    assert planned["y"] == [1, 4, 0]
    assert promised["y"] == [1, 0]


def test_only_measured_levels_are_points_of_the_curve() -> None:
    levels = [
        CurveLevel(gpus=1, iterations_per_second=4.0, source="live", samples=3),
        CurveLevel(gpus=4, iterations_per_second=10.0, source="profiled"),
    ]
    perfect, measured = as_json(scaling_curve.figure(Curve(levels, "emulated-a100", True, gpus_now=4)))[
        "data"
    ]
    assert measured["x"] == [1, 4]
    assert measured["marker"]["symbol"] == ["circle", "circle-open"]
    assert perfect["y"] == [4.0, 16.0]
    assert scaling_curve.figure(None) is None
    assert scaling_curve.figure(Curve([], "cpu", False, 0)) is None


def test_curves_of_other_plans_are_drawn_beside_the_jobs_own() -> None:
    own = [CurveLevel(gpus=1, iterations_per_second=4.0), CurveLevel(gpus=4, iterations_per_second=8.0)]
    without = [CurveLevel(gpus=1, iterations_per_second=4.0), CurveLevel(gpus=8, iterations_per_second=9.0)]
    shown = Curve(own, "a100", True, 4, family="lossy", others={"dense": without})
    drawn = as_json(scaling_curve.figure(shown))
    _, mine, other = drawn["data"]
    assert mine["name"] == "Measured, lossy plans"
    assert (other["name"], other["x"], other["y"]) == ("Measured, no plan", [1, 8], [4.0, 9.0])
    assert drawn["layout"]["xaxis"]["tickvals"] == [1, 4, 8]


def test_levels_limited_by_the_hosts_speed_are_marked() -> None:
    levels = [
        CurveLevel(gpus=1, iterations_per_second=4.0, source="profiled", overrun=0.01),
        CurveLevel(gpus=2, iterations_per_second=6.0, source="profiled", overrun=0.125),
        CurveLevel(gpus=4, iterations_per_second=9.0, source="live", overrun=0.125),
    ]
    _perfect, measured = as_json(scaling_curve.figure(Curve(levels, "emulated-a100", True, gpus_now=4)))[
        "data"
    ]
    assert measured["marker"]["symbol"] == ["circle-open", "x-thin-open", "circle"]
    doubts = [told[3] for told in measured["customdata"]]
    assert [bool(doubt) for doubt in doubts] == [False, True, False]
    assert "void" in doubts[1]
    assert "12%" in doubts[1]


def test_metrics_put_the_loss_first_and_mark_changes_of_gpus() -> None:
    series = MetricSeries(
        iterations=[0, 1, 2],
        values={"accuracy": [0.1, None, 0.3], "loss": [3.0, 2.0, 1.0]},
        iterations_per_second=[1, 1, 1],
        gpus=[1, 1, 2],
        generations=[(0, 1), (1, 1), (2, 2)],
    )
    drawn = as_json(job_metrics.figure(series))
    assert [trace["name"] for trace in drawn["data"]] == ["loss", "accuracy"]
    assert [note["text"] for note in drawn["layout"]["annotations"]] == ["1 GPU", "2 GPUs"]


@pytest.mark.parametrize("text", ["<b>x</b>", "a & b <img src=x>", "x" * 500])
def test_text_from_outside_is_no_markup_for_plotly(text: str) -> None:
    plain = plain_text(text)
    assert "<" not in plain
    assert len(plain) < 300
