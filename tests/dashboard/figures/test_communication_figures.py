"""Figures of a job's communication plan: predicted and measured times, and one iteration's timeline."""

from __future__ import annotations

from typing import Any

from dashboard.figures.jobs import job_communication, job_iteration

PREDICTED = {"iteration_seconds": 0.1, "bytes_between": 5e6, "exposed_seconds": 0.02}
CHOSEN = {
    "planner": "espresso",
    "codec": "fp16",
    "lossless": False,
    "buffer_bytes": 7,
    "predicted": PREDICTED,
}
DENSE = {
    "planner": "dense", "codec": "none", "lossless": True, "buffer_bytes": 0,
    "predicted": {**PREDICTED, "iteration_seconds": 0.15},
}  # fmt: skip
SPANS = [
    {"stage": "backward", "group": 0, "begin_seconds": 0.0, "end_seconds": 0.02},
    {"stage": "exchange", "resource": "between", "group": 0, "begin_seconds": 0.02, "end_seconds": 0.05},
    {"stage": "exchange", "resource": "between", "group": 1, "begin_seconds": 0.05, "end_seconds": 0.06},
]
PREDICTED_SPANS = [
    {**SPANS[0], "resource": "gpu", "end_seconds": 0.018},
    {**SPANS[1], "resource": "between", "end_seconds": 0.04},
]
WINDOW = {
    "iteration": 40, "exposed_seconds": 0.03, "received_bytes": 25, "dense_bytes": 100,
    "push_imbalance": 1.1, "pull_imbalance": 1.0, "residual_norm": 2.5, "spans": SPANS,
}  # fmt: skip


def told(**changes: Any) -> dict[str, Any]:
    return {
        "chosen": CHOSEN, "beaten": [DENSE], "speedup": 1.5, "measured_seconds": 0.12,
        "seconds_without_plan": 0.16, "given_up": "", "window": WINDOW,
        "links": {"told_by": "default", "between": {"bytes_per_second": 1.25e9}},
        "predicted_spans": PREDICTED_SPANS, **changes,
    }  # fmt: skip


def test_plans_are_drawn_as_predicted_and_as_measured() -> None:
    drawn = job_communication.figure(told())
    assert drawn is not None
    predicted, measured = drawn.data
    assert list(predicted.y) == ["Espresso, fp16", "no plan"]
    assert list(predicted.x) == [100.0, 150.0]
    assert list(measured.x) == [120.0, 160.0]


def test_unmeasured_plans_have_no_bar() -> None:
    drawn = job_communication.figure(told(measured_seconds=None, seconds_without_plan=None))
    assert drawn is not None
    assert [trace.name for trace in drawn.data] == ["Predicted"]


def test_texts_name_the_plans_saving_and_why_it_was_given_up() -> None:
    words = job_communication.caption(told(given_up="it lost"))
    for expected in ("1.50 times", "10 Gbit/s", "75% of the bytes", "1.10 times the mean", "2.5", "it lost"):
        assert expected in words
    assert job_communication.caption(told(window=None)).count("mean") == 0


def test_measured_and_predicted_iterations_are_drawn_by_resource() -> None:
    drawn = job_iteration.figure(told())
    assert drawn is not None
    backward, foretold, exchange, expected = drawn.data
    assert (backward.name, list(backward.x)) == ("Backward pass", [20.0])
    assert (foretold.name, list(foretold.x)) == ("Backward pass (predicted)", [18.0])
    assert expected.name == "Communicate, between servers (predicted)"
    assert exchange.name == "Communicate, between servers"
    assert [round(width) for width in expected.x] == [20]
    assert [round(base) for base in exchange.base] == [20, 50]
    assert [round(width) for width in exchange.x] == [30, 10]
    assert "waits 30.0 ms for communication; 20.0 ms were predicted" in job_iteration.caption(told())


def test_without_a_plan_or_a_window_no_figure_is_drawn() -> None:
    assert job_communication.figure(told(chosen=None)) is None
    assert job_iteration.figure(told(window=None)) is None
    assert job_communication.caption(told(chosen=None)) == job_iteration.caption(told(window=None)) == ""


def test_measured_links_are_labelled_where_they_are_emulated() -> None:
    links = {"told_by": "measured", "emulated": True, "between": {"bytes_per_second": 1.25e9}}
    assert "(emulated, measured)" in job_communication.caption(told(links=links))
    assert "(measured)" in job_communication.caption(told(links={**links, "emulated": False}))
