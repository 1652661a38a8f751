"""Figures show the run's columns, note how they were thinned, and have a text where there is no data."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.reports.figures import drawings
from simulation.reports.gpus_by_job import pieces
from simulation.reports.measures import mean_utilisation
from simulation.reports.style import log_ticks, time_unit
from tests.simulation.reports.outcomes import (
    allocation_rows,
    best_effort,
    cluster_rows,
    declined,
    finished,
    outcome,
    random_outcome,
)

NAMES = [
    "gpus", "fates", "jobs", "ratio", "efficiency", "waiting", "queuing", "slack",
    "decisions", "decision_growth", "jobs_gpus",
]  # fmt: skip


def by_name(run, **options):
    return {drawing.name: drawing for drawing in drawings(run, **options)}


def trace(drawing, name):
    return next(item for item in drawing.figure.data if item.name == name)


@pytest.fixture
def small():
    return outcome(
        [
            finished("a", 0, 0, 50, deadline=60),
            finished("b", 10, 20, 80, deadline=70),
            declined("c", 20, deadline=30),
            best_effort("d", 30, 50, 100),
        ],
        cluster_rows(
            (0.0, 4, 2, 0, 1, 0, 0.4, 0.001),
            (20.0, 4, 4, 0, 2, 1, 0.9, 0.002),
            (50.0, 4, 2, 1, 2, 0, 0.625, 0.001),
            (80.0, 4, 0, 1, 1, 0, 0.25, 0.001),
        ),
        allocations=allocation_rows((0, 0, 2), (20, 1, 2), (50, 0, 0), (50, 3, 1), (80, 1, 0), (100, 3, 0)),
    )


def test_every_figure_is_drawn_of_an_ordinary_run(small):
    drawn = by_name(small)
    assert list(drawn) == NAMES
    assert [name for name, drawing in drawn.items() if drawing.figure is None] == []


def test_an_empty_run_gets_a_sentence_for_every_figure():
    for drawing in drawings(outcome()):
        assert drawing.figure is None
        assert drawing.empty.endswith(".")


def test_the_areas_of_the_allocation_add_up_to_the_cluster(small):
    drawing = by_name(small)["gpus"]
    total = np.sum([np.array(area.y) for area in drawing.figure.data], axis=0)
    assert total.tolist() == [4.0] * 5
    assert trace(drawing, "Promised").y.tolist() == [2, 4, 2, 0, 0]


def test_time_is_counted_from_the_beginning_of_the_run():
    run = outcome(
        [finished("a", 9e6, 9e6, 9e6 + 50, deadline=9e6 + 60)],
        cluster_rows((9e6, 4, 2, 0, 1, 0, 0.4, 0.001)),
        end_at=9e6 + 100,
        allocations=allocation_rows((9e6, 0, 2), (9e6 + 50, 0, 0)),
    )
    drawn = by_name(run)
    assert drawn["gpus"].figure.data[0].x.tolist() == [0.0, 100.0]
    assert drawn["gpus"].figure.layout.xaxis.title.text == "seconds since the run began"
    bar = drawn["jobs_gpus"].figure.data[0]
    assert (list(bar.base), list(bar.x)) == ([0.0], [50.0])


def test_jobs_are_counted_from_the_start(small):
    drawing = by_name(small)["jobs"]
    last = {line.name: float(line.y[-1]) for line in drawing.figure.data}
    assert last == {"Submitted": 4, "Admitted": 3, "Declined": 1, "Completed": 3, "On time": 1}


def test_the_deadline_ratio_ends_at_the_ratio_of_the_run(small):
    line = trace(by_name(small)["ratio"], "SLO jobs")
    assert line.y.tolist() == pytest.approx([1.0, 0.5, 1 / 3])


def test_late_jobs_are_left_of_zero_in_the_slack(small):
    bars = by_name(small)["slack"].figure.data[0]
    left = sum(int(count) for at, count in zip(bars.x, bars.y, strict=True) if at < 0)
    right = sum(int(count) for at, count in zip(bars.x, bars.y, strict=True) if at > 0)
    assert (left, right) == (1, 1)


def test_job_ending_at_its_deadline_within_rounding_is_not_late():
    run = outcome([finished("to the second", 0, 0, 60.0000001, deadline=60)])
    assert min(by_name(run)["slack"].figure.data[0].x) > 0


def test_instants_without_decisions_do_not_lower_decision_times():
    run = outcome(cluster=cluster_rows((0.0, 4, 0, 0, 0, 0, 0.0, 0.0), (50.0, 4, 0, 0, 1, 0, 0.0, 0.004)))
    assert by_name(run)["decision_growth"].figure.data[0].y.tolist() == pytest.approx([4.0])


def test_the_pieces_of_a_job_last_until_it_changes_or_the_run_ends():
    run = outcome(
        [best_effort("a", 0, 0, 100), best_effort("b", 0, 0, 100)],
        allocations=allocation_rows((0, 0, 1), (10, 1, 2), (30, 0, 4), (60, 1, 0)),
    )
    job, begin, end, gpus = pieces(run)
    assert list(zip(job.tolist(), begin.tolist(), end.tolist(), gpus.tolist(), strict=True)) == [
        (0, 0, 30, 1), (0, 30, 100, 4), (1, 10, 60, 2),
    ]  # fmt: skip


def test_many_jobs_are_not_drawn_one_by_one():
    drawing = by_name(random_outcome(61, 10))["jobs_gpus"]
    assert drawing.figure is None
    assert "61" in drawing.empty


def test_a_long_history_is_thinned_honestly():
    run = random_outcome(200, 6_000)
    drawn = by_name(run, most_steps=100)
    assert "6,000 planning instants are drawn as 100 steps" in drawn["gpus"].note
    promised, unpromised, idle = (np.array(area.y, dtype=float) for area in drawn["gpus"].figure.data)
    used, present = (promised + unpromised)[:-1], (promised + unpromised + idle)[:-1]
    # All steps are equally long, so plain means are means over time.
    assert used.sum() / present.sum() == pytest.approx(mean_utilisation(run), rel=1e-5)


def test_figures_of_a_month_with_eighty_thousand_instants_stay_small():
    drawn = [drawing.as_json("simulated") for drawing in drawings(random_outcome(2_400, 80_000))]
    size = sum(len(json.dumps(figure, default=lambda value: value.tolist())) for figure in drawn)
    assert size < 1_500_000


def test_names_of_jobs_cannot_carry_markup_into_a_figure():
    run = outcome(
        [best_effort("<b>bold</b>", 0, 0, 10)], allocations=allocation_rows((0, 0, 1), (10, 0, 0))
    )  # fmt: skip
    figure = by_name(run)["jobs_gpus"].figure
    assert figure.layout.yaxis.ticktext == ("&lt;b&gt;bold&lt;/b&gt;",)


def test_a_time_axis_has_a_unit_that_suits_its_length():
    spans = [100, 3_600, 200_000, 5_000_000]
    assert [time_unit(span).name for span in spans] == ["seconds", "minutes", "hours", "days"]


@given(st.lists(st.floats(1e-4, 1e5), min_size=1, max_size=5))
def test_a_logarithmic_axis_holds_all_values_between_marks(values):
    axis = log_ticks(np.array(values))
    low, high = (10**end for end in axis["range"])
    assert low * (1 - 1e-9) <= min(values) <= max(values) <= high * (1 + 1e-9)
    assert low < high
