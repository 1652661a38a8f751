"""`punctual job ID --experts` in words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from punctual.cli.experts import say_experts
from punctual.client.models import Metric

NOTHING: dict[str, Any] = {
    "generation": None, "iteration": None, "iterations": 0, "told_at": None, "layers": [], "other_layers": 0,
    "workers": [], "all_to_all": None, "decisions": [], "history": [],
}  # fmt: skip
LAYER: dict[str, Any] = {
    "name": "blocks.1.mixture", "tokens": 4000, "rows": [3000, 1000], "dropped": [500, 0], "load": [1.5, 0.5],
    "two_expert_share": 0.25, "dropped_share": 0.125, "balance_loss": 1.25, "hosts": [[], []],
}  # fmt: skip
TOLD: dict[str, Any] = {
    **NOTHING, "generation": 2, "iteration": 140, "iterations": 100, "told_at": "2026-11-28T01:00:00+00:00",
    "layers": [LAYER],
    "workers": [{"rank": 0, "server": "node-a", "gpu": 3}, {"rank": 1, "server": "node-b", "gpu": 0}],
}  # fmt: skip


def said(capsys: pytest.CaptureFixture[str], told: dict[str, Any], *metrics: Metric) -> str:
    say_experts(told, metrics, as_json=False)
    return capsys.readouterr().out


def test_a_job_without_mixtures_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no mixture-of-experts layers" in said(capsys, NOTHING)


def test_layers_are_rows_with_the_load_of_each_expert(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, TOLD)
    assert "41 to 140, in generation 2" in text
    row = next(line for line in text.splitlines() if "blocks.1.mixture" in line)
    assert row.split() == ["blocks.1.mixture", "4,000", "25.0%", "12.5%", "1.250", "1.50", "0.50"]
    assert "no rows travel" in text
    assert "Every worker has all experts." in text


def test_tiers_are_shown_as_means_of_reporting_iterations(
    capsys: pytest.CaptureFixture[str],
) -> None:
    values = {"moe/tier_stall_seconds": 0.002, "moe/tier_bytes_read": 3e6, "moe/tier_bytes_written": 1e6}
    metrics = [Metric(values={"moe/tier_hits": hits, **values}) for hits in (0.5, 1.0)]
    text = " ".join(said(capsys, TOLD, *metrics, Metric(values={"loss": 1.0})).split())
    assert "75% of the states were found in host memory; an iteration waited 2.0 ms" in text
    assert "read 3.0 MB from disk and wrote 1.0 MB" in text
    assert "Tiers" not in said(capsys, TOLD)


def test_homes_all_to_alls_and_decisions_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    layer = {**LAYER, "load": [1.0] * 20 + [3.0, 0.0], "hosts": [[0]] * 11 + [[0, 1]] * 11}
    between_servers = {
        "rates_source": "measured", "hierarchical_share": 0.5, "flat_seconds": 0.004,
        "hierarchical_seconds": 0.002,
        "predicted_seconds": 0.0025, "measured_seconds": 0.003,
    }  # fmt: skip
    timing = {
        "share": 0.38, "all_to_all_seconds": 0.0122, "iteration_seconds": 0.0321,
        "between_servers": between_servers,
    }  # fmt: skip
    decision = {
        "generation": 2, "iteration": 50, "from_factor": 1, "to_factor": 2, "ffn_seconds": 0.001,
        "all_to_all_seconds": 0.002, "reason": "the experts are \x1b[31mshorter",
    }  # fmt: skip
    document = {
        **TOLD,
        "layers": [layer, {**layer, "name": ""}],
        "all_to_all": timing,
        "decisions": [decision],
    }
    lines = said(capsys, document | {"other_layers": 3}).splitlines()
    text = "\n".join(lines)
    assert "38% of an iteration: 12.2 ms of 32.1 ms" in text
    assert "50% hierarchical; an all-to-all took 3.0 ms, predicted 2.5 ms by measured rates" in text
    assert "most: 20 (3.00), 0 (1.00), 1 (1.00), 2 (1.00); least: 21 (0.00), 19 (1.00)" in text
    assert "3 more layers are not reported" in text
    assert ["all", "0", "to", "10", "0", "on", "node-a:3"] in [line.split() for line in lines]
    assert "0 on node-a:3, 1 on node-b:0" in text
    assert any("1 → 2" in line and "the experts are shorter" in line for line in lines)
    assert "\x1b[31m" not in text


def test_layers_with_different_homes_are_listed_separately(capsys: pytest.CaptureFixture[str]) -> None:
    layers = [LAYER, {**LAYER, "name": "other", "hosts": [[7], [0]]}, {**LAYER, "name": "x", "hosts": None}]
    lines = [line.split() for line in said(capsys, {**TOLD, "layers": layers}).splitlines()]
    assert ["All-to-all", "not", "measured", "yet"] in lines
    assert ["blocks.1.mixture", "0", "to", "1", "all"] in lines
    assert ["other", "0", "7"] in lines
    assert ["x", "all", "not", "reported:", "too", "many"] in lines


def test_json_output_is_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    say_experts(TOLD, [], as_json=True)
    assert json.loads(capsys.readouterr().out) == TOLD
