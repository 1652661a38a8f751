"""A comparison labels runs, marks the best only where that is meaningful, and is plain JSON."""

from __future__ import annotations

import json
import math

import plotly.graph_objects as go
import pytest

from simulation.reports.comparison import comparison, differences
from simulation.reports.parquet import read_parquet, write_parquet
from simulation.reports.runs import labels
from tests.simulation.reports.outcomes import best_effort, declined, finished, outcome, random_outcome


def run_of(policy: str, completed: float = 50, **settings):
    return outcome(
        [finished("a", 0, 0, completed, deadline=60), best_effort("b", 0, 10, completed + 40)],
        settings={"policy": policy, **settings},
    )


def row(compared, name):
    return next(entry for entry in compared["table"] if entry["name"] == name)


def test_run_labels_are_policies_where_these_differ():
    assert labels([run_of("punctual"), run_of("edf", slot_seconds=30.0)]) == ["punctual", "edf"]


def lending(policy: str, inference_servers: int, **settings):
    loans = {"loaning": True, "scaling": True, "inference_usage": "daily", "reclaim": "improved", **settings}
    return run_of(policy, servers=4, inference_servers=inference_servers, **loans)


def test_run_labels_show_own_and_loaned_servers():
    runs = [
        run_of("punctual", servers=4),
        run_of("edf", servers=4),
        lending("punctual", 8),
        lending("punctual", 16),
    ]
    assert labels(runs) == [
        "punctual, 4 servers",
        "edf, 4 servers",
        "punctual, 4 + 8 servers",
        "punctual, 4 + 16 servers",
    ]


def test_run_labels_of_equal_loans_show_other_differences():
    runs = [lending("punctual", 8, reclaim="lyra"), lending("punctual", 8), lending("lyra", 8)]
    assert labels(runs) == ["punctual, reclaim lyra", "punctual, reclaim improved", "lyra"]
    closed = run_of("lyra", servers=4, loaning=False, scaling=False)
    assert labels([closed, lending("lyra", 8)]) == [
        "lyra, 4 servers, scaling False",
        "lyra, 4 + 8 servers, scaling True",
    ]


def test_loan_figures_never_mark_a_run_without_loans_as_best():
    compared = comparison([run_of("edf", servers=4), lending("punctual", 8)])
    for name in ("reclaim_preemptions", "shortfall_servers_max"):
        assert [cell["text"] for cell in row(compared, name)["cells"]] == ["–", "0"]
        assert not any(cell["best"] for cell in row(compared, name)["cells"])
    assert compared["figures"]["on_loan"]["layout"]["meta"]["empty"] == "No run lends servers."


def test_run_labels_of_one_policy_show_differences():
    runs = [run_of("edf", servers=8), run_of("edf", servers=16), run_of("fifo", servers=16)]
    assert labels(runs) == ["edf, servers 8", "edf, servers 16", "fifo"]


def test_identical_runs_are_numbered():
    assert labels([run_of("edf"), run_of("edf")]) == ["edf (1)", "edf (2)"]


def test_the_best_of_a_row_is_marked_with_all_its_ties():
    compared = comparison([run_of("punctual"), run_of("edf", completed=70), run_of("fifo")])
    marked = [cell["best"] for cell in row(compared, "deadlines_met")["cells"]]
    assert marked == [True, False, True]
    assert [cell["best"] for cell in row(compared, "best_effort_mean_jct_seconds")["cells"]] == [
        True,
        False,
        True,
    ]


def test_equal_or_unordered_figures_have_no_best_cell():
    compared = comparison([run_of("punctual"), run_of("edf", completed=55)])
    assert not any(cell["best"] for cell in row(compared, "deadlines_met")["cells"])
    assert not any(cell["best"] for cell in row(compared, "mean_jct_seconds")["cells"])


def test_inapplicable_figure_is_a_dash_and_never_the_best():
    without = outcome([declined("a", 0, deadline=60), declined("b", 0, deadline=60)])
    cells = row(comparison([run_of("punctual"), without]), "best_effort_mean_jct_seconds")["cells"]
    assert cells[1] == {"text": "–", "best": False}


def test_runs_of_other_jobs_are_shown_but_not_ranked():
    compared = comparison([run_of("punctual"), random_outcome(20, 10)])
    assert "not of the same jobs" in compared["warnings"][0]
    assert not any(cell["best"] for entry in compared["table"] for cell in entry["cells"])


def test_a_run_that_was_stopped_early_is_not_ranked():
    stopped = outcome([finished("a", 0, 0, 50, deadline=60)], interrupted=True, settings={"policy": "edf"})
    assert "Stopped early" in differences([stopped, stopped])[0]


def test_a_comparison_is_strict_json_with_figures_that_plotly_takes():
    compared = comparison([random_outcome(40, 30), random_outcome(40, 30, settings={"policy": "edf"})])
    again = json.loads(json.dumps(compared, allow_nan=False))
    assert [run["label"] for run in again["runs"]] == ["punctual", "edf"]
    for figure in again["figures"].values():
        meta = figure["layout"]["meta"]
        assert meta["made"].startswith("Simulated · trace by-hand")
        assert {"title", "note"} <= set(meta)
        go.Figure(figure)


def test_runs_with_long_names_that_begin_alike_all_have_their_bar():
    runs = [run_of("punctual", failures="x" * 100 + end) for end in "abc"]
    bars = comparison(runs)["figures"]["fates"]
    assert len(bars["layout"]["yaxis"]["ticktext"]) == len(bars["data"][0]["customdata"]) == 3


def test_comparison_of_stored_runs_equals_the_original(tmp_path):
    runs = [random_outcome(30, 20, seed) for seed in (1, 2)]
    stored = []
    for number, run in enumerate(runs):
        write_parquet(run, tmp_path / str(number))
        stored.append(read_parquet(tmp_path / str(number)))
    assert comparison(stored) == comparison(runs)


def test_a_run_without_jobs_can_stand_beside_one_with_jobs():
    compared = comparison([run_of("punctual"), outcome(end_at=0.0, settings={"policy": "edf"})])
    assert math.isclose(compared["runs"][0]["deadline_satisfactory_ratio"], 1.0)
    assert compared["figures"]["utilisation"]["layout"]["meta"]["empty"]


def test_a_comparison_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one run"):
        comparison([])
