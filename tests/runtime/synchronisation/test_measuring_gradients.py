"""Plans are made from profiling's reports on gradients, and the control plane accepts the record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from communication.hooks.codecs.names import CODECS
from communication.hooks.measures import CommunicationMeasures
from communication.zen.measuring import measured_profile
from punctual.protocol import limits
from punctual.protocol.communication import CommunicationProfile, CommunicationWindow
from punctual.protocol.reports import check
from tests.runtime.conftest import EXAMPLES, REGRESSION, emulated, regression
from tests.runtime.synchronisation.test_zen_plans import PACKED, lossy_rest, recommender, zen
from workers.runtime.at_home.local_agent import LocalAgent, runtime_plan
from workers.runtime.measuring.gradient_densities import GradientDensities
from workers.runtime.measuring.gradient_times import GradientTimes, IterationTimes, gaps
from workers.runtime.measuring.records import profile_fields
from workers.runtime.measuring.windows import CommunicationWindows

PROFILE = {"levels": [1, 2], "seconds_per_level": 0.1, "max_seconds": 120}


def measured_profiles(agent: LocalAgent, source: Any, assignment: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the profiles of a measurement, validated as agents do."""
    generation = agent.start_generation(source, assignment | {"purpose": "profiling", "profile": PROFILE}, 2)
    generation.leader.wait_for_event("profile_done", 120)
    messages = generation.leader.of_kind("event")
    events = [message for message in messages if message["kind"] == "communication_profile"]
    profiles = []
    for event in events:
        fields, problem = check(CommunicationProfile, event)
        assert fields is not None, problem
        profiles.append(fields)
    return profiles


@pytest.mark.live
def test_profiling_reports_ordered_gradients_with_the_devices_gaps(agent: LocalAgent) -> None:
    profiles = measured_profiles(agent, REGRESSION, regression(device=emulated(fixed_seconds=0.06)))
    assert [item["gpus"] for item in profiles] == [1, 2]
    for profile in profiles:
        names = [item["name"] for item in profile["tensors"]]
        assert (names[0].split(".")[0], names[-1].split(".")[0]) == ("3", "0")
        elements = {item["name"]: item["elements"] for item in profile["tensors"]}
        assert sum(elements.values()) == 289
        backward = sum(item["gap_seconds"] for item in profile["tensors"])
        for item in profile["tensors"]:
            share = item["elements"] / 289
            assert item["gap_seconds"] == pytest.approx(share * backward, rel=0.01, abs=1e-6)
        # A third of the passes is the forward pass.
        assert backward + profile["other_seconds"] == pytest.approx(0.06, rel=0.1)
        assert {item["codec"] for item in profile["codecs"]} == set(CODECS) - {"none"}


def test_profiling_reports_the_density_of_tables(agent: LocalAgent) -> None:
    assignment = {
        "function": {"entry": "recommender:Recommender"},
        "hyperparameters": {"global_batch_size": 64, "rating_count": 4000},
        "termination": {"max_iterations": 8, "target": None},
        "seed": 1,
    }
    alone, pair = measured_profiles(agent, EXAMPLES / "recommender.py", assignment)
    (table,) = [item for item in alone["sparse"] if item["name"] == "user.weight"]
    assert (table["width"], table["sums"]) == (16, [])
    # 64 users of 2000, some twice.
    assert 0.8 * 64 / 2000 < table["density"] <= 64 / 2000
    (table,) = [item for item in pair["sparse"] if item["name"] == "user.weight"]
    assert 0.8 * 32 / 2000 < table["density"] <= 32 / 2000
    assert [item["workers"] for item in table["sums"]] == [2]
    assert 1.8 * table["density"] < table["sums"][0]["density"] <= 2 * table["density"]
    assert not any(item["name"].startswith("mix") for item in pair["sparse"])


@pytest.mark.live
def test_profiling_reports_link_rates(agent: LocalAgent) -> None:
    """A call of four ranks on two servers takes two steps; ranks of a server share its network."""
    device = emulated(fixed_seconds=0.02, latency_seconds=0.002, network=1e6, within_server=4e6)
    places = {"servers": [0, 0, 1, 1], "racks": [0, 0, 0, 0]}
    assignment = regression(device=device, places=places, purpose="profiling")
    profile = {"levels": [2, 4], "seconds_per_level": 0.2, "max_seconds": 120}
    generation = agent.start_generation(REGRESSION, {**assignment, "profile": profile}, 4)
    generation.leader.wait_for_event("profile_done", 120)
    messages = generation.leader.of_kind("event")
    pair, four = (message["links"] for message in messages if message["kind"] == "communication_profile")
    assert set(pair) == {"within"}
    # Both ranks send over the same link at once.
    assert pair["within"]["bytes_per_second"] == pytest.approx(2e6, rel=0.1)
    assert pair["within"]["latency_seconds"] == pytest.approx(0.002, rel=0.5)
    assert four["between"]["bytes_per_second"] == pytest.approx(1e6, rel=0.1)
    # Two pairs use the link at once: each hides the other's waits.
    assert 0.0 <= four["between"]["latency_seconds"] <= 0.0025


def test_densities_are_shares_of_touched_rows(alone: None) -> None:
    model = nn.ModuleDict(
        {
            "rows": nn.Embedding(100, 3, sparse=True),
            "table": nn.Embedding(100, 2),
            "dense": nn.Linear(3, 100),
            "unused": nn.Embedding(100, 2),
            "small": nn.Embedding(10, 2),
            "expert": nn.Embedding(100, 2),
        }
    )
    densities = GradientDensities(model, {"expert.weight"})
    touched = [[4, 4, 9], [1], [0, 99, 50]]
    for watched, indices in zip((True, False, True), touched, strict=True):
        densities.watching = watched
        rows = model["rows"](torch.tensor(indices))
        table = model["table"](torch.tensor(indices[:1]))
        small = model["small"](torch.tensor([1])) + model["expert"](torch.tensor([1]))
        (model["dense"](rows).sum() + table.sum() + small.sum()).backward()
        if watched:
            densities.iteration_done()
    densities.close()
    by_name = {profile.tensor: profile for profile in densities.profiles(None) or []}
    assert {name: item.rows for name, item in by_name.items()} == {"rows.weight": True, "table.weight": False}
    rows_seen = [[np.unique(touched[0]) + 1], [np.unique(touched[2]) + 1]]
    assert by_name["rows.weight"] == replace(measured_profile("rows.weight", 300, 3, rows_seen), rows=True)
    assert not by_name["table.weight"].rows
    assert by_name["table.weight"].densification.density == pytest.approx(0.01)


def test_frozen_tables_and_gradients_without_elements_are_no_obstacle(alone: None) -> None:
    """A frozen table has no gradient; a batch of padding touches no row; a layer may have no columns."""
    frozen = nn.Embedding.from_pretrained(torch.zeros(100, 2), sparse=True)
    model = nn.ModuleDict({"frozen": frozen, "rows": nn.Embedding(100, 2, padding_idx=0, sparse=True)})
    model.register_parameter("empty", nn.Parameter(torch.zeros(100, 0)))
    densities = GradientDensities(model)
    densities.watching = True
    rows = model["frozen"](torch.tensor([1])) + model["rows"](torch.tensor([0]))
    (rows.sum() + model.empty.sum()).backward()
    densities.iteration_done()
    densities.close()
    (rows_profile,) = densities.profiles(None) or []
    assert (rows_profile.tensor, rows_profile.densification.density) == ("rows.weight", 0.0)
    assert GradientDensities(model).profiles(None) is None


def test_gaps_follow_the_order_in_which_gradients_are_ready() -> None:
    iterations = [
        IterationTimes(1.0, (("b", 0.1), ("a", 0.3)), 0.5, 0.0),
        IterationTimes(1.0, (("b", 0.1), ("a", 0.5)), 0.5, 0.0),
        IterationTimes(1.0, (("a", 0.2), ("b", 0.4)), 0.5, 0.0),
    ]
    measured = gaps(iterations, {"a": 1, "b": 1, "never": 1})
    assert [name for name, _ in measured] == ["b", "a", "never"]
    assert [gap for _, gap in measured] == pytest.approx([0.1, 0.2, 0.0])


def test_only_watched_iterations_are_timed() -> None:
    model = nn.Linear(2, 2)
    times = GradientTimes(model, torch.device("cpu"), None)
    for watching in (False, True):
        times.watching = watching
        times.begins()
        loss = model(torch.ones(2)).sum()
        times.backward_begins()
        loss.backward()
        times.synchronised()
        times.ends()
    times.close()
    model(torch.ones(2)).sum().backward()
    (iteration,) = times.iterations
    assert sorted(name for name, _ in iteration.ready) == ["bias", "weight"]
    assert 0.0 < iteration.ready[-1][1] <= iteration.seconds
    assert iteration.other + iteration.exposed + iteration.ready[-1][1] == pytest.approx(iteration.seconds)


def test_models_too_large_for_a_record_are_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    iterations = [IterationTimes(1.0, (), 0.5, 0.0)]

    def fields(model: nn.Module) -> Any:
        return profile_fields(model, iterations, gpus=1, sparse=[], codecs=[])

    few = nn.Linear(2, 2)
    assert [tensor["name"] for tensor in fields(few)["tensors"]] == ["weight", "bias"]
    assert fields(nn.ModuleDict({"x" * 200: few})) is None
    assert fields(nn.ModuleDict({"a\nb": few})) is None
    assert fields(nn.Identity()) is None
    for module, size in ((few, 4), (nn.Linear(2, 2).bfloat16(), 2), (nn.Linear(2, 2).double(), 8)):
        assert fields(module)["bytes_per_element"] == size
    assert fields(nn.Sequential(few, nn.Linear(2, 2).bfloat16()))["bytes_per_element"] == 4
    # Most elements count; a gradient that no plan can carry counts alone.
    assert fields(nn.Sequential(few, nn.Linear(2, 9).bfloat16()))["bytes_per_element"] == 2
    assert fields(nn.Sequential(nn.Linear(2, 9), few.double()))["bytes_per_element"] == 8
    few.float()
    monkeypatch.setattr(limits, "COMMUNICATION_RECORD_BYTES", 100)
    assert fields(few) is None
    monkeypatch.undo()
    monkeypatch.setattr(limits, "TENSORS_OF_A_MODEL", 1)
    assert fields(few) is None


def test_a_window_reports_measured_times_of_a_plan(agent: LocalAgent) -> None:
    """A plan with Zen's tables and compressed gradients reports the sizes, seconds and residuals of both."""
    zen_kind, rest = zen(PACKED, "zen"), lossy_rest(PACKED)
    plan = runtime_plan(zen_kind, {"kind": "sparse", "choices": {}}, rest, family="lossy")
    assignment = recommender(runtime_plan=plan, termination={"max_iterations": 30, "target": None})
    generation = agent.start_generation(EXAMPLES / "recommender.py", assignment, 2).wait_until_ready()
    generation.train_from_nothing().report()
    (event,) = [item for item in generation.leader.of_kind("event") if item["kind"] == "communication_window"]
    window, problem = check(CommunicationWindow, event)
    assert window is not None, problem
    assert (window["plan"], window["iteration"]) == (plan["digest"], 23)
    assert len(window["iteration_seconds"]) == 20
    assert 0.8 * 32 / 2000 < window["densities"][0]["density"] <= 32 / 2000
    assert len(window["densities"]) == 1
    assert 1.0 < window["push_imbalance"] <= 2.0
    assert window["residual_norm"] > 0.0
    # OneBit of 272 elements, gathered from one other rank; a row of a table is 17 words.
    onebit = 2 * 8 + 256 // 8 + 16 // 8
    assert onebit + 0.4 * 32 * 68 < window["received_bytes"] < onebit + 3 * 32 * 68 + 500
    assert window["dense_bytes"] == 4 * 272 + 4 * 2000 * 16
    for stage in ("encode", "exchange", "decode"):
        assert 0.0 < window[f"{stage}_seconds"] < sum(window["iteration_seconds"])
    assert window["spans"][0]["stage"] == "backward"
    # Sparse gradients come first, and a rank's span excludes the time for which it waits for other ranks.
    rows, others = ([item for item in window["spans"][1:] if item["group"] == group] for group in (0, 1))
    assert [row["stage"] for row in rows[::2]] == ["encode"] * (len(rows) // 2) + ["decode"]
    assert {item["stage"] for item in rows[1::2]} == {"exchange"}
    assert [other["stage"] for other in others] == ["encode", "exchange", "decode"]
    assert [item["resource"] for item in others] == ["gpu", "within", "gpu"]
    assert all(item["begin_seconds"] <= item["end_seconds"] for item in window["spans"])


def test_without_a_plan_there_are_no_windows(agent: LocalAgent) -> None:
    generation = agent.start_generation(REGRESSION, regression(iterations=30), 2).wait_until_ready()
    generation.train_from_nothing().report()
    kinds = {message["kind"] for message in generation.leader.of_kind("event")}
    assert "communication_window" not in kinds


def test_the_first_window_is_early_and_later_windows_are_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    reports: list[dict[str, Any]] = []
    monkeypatch.setattr("workers.runtime.measuring.windows.time.monotonic", lambda: now[0])
    model = nn.Linear(2, 2)
    times = GradientTimes(model, torch.device("cpu"), None)
    windows = CommunicationWindows(CommunicationMeasures, times, "0" * 64, reports.append)
    for iteration in range(1, 701):
        times.iterations.append(IterationTimes(0.1, (("bias", 0.01),), 0.02, 0.0))
        now[0] += 0.1
        windows.iteration_done(iteration)
    assert [window["iteration"] for window in reports] == [23, 329, 635]
    assert [len(window["iteration_seconds"]) for window in reports] == [20, 50, 50]
