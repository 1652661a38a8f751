"""`punctual job ID --communication` in words."""

from __future__ import annotations

from typing import Any

import pytest

from punctual.cli.communication import say_communication
from punctual.client.requests import override_body

PREDICTED = {"iteration_seconds": 0.1, "bytes_between": 5e6}
DENSE = {
    "planner": "dense",
    "codec": "none",
    "buffer_bytes": 0,
    "predicted": {**PREDICTED, "iteration_seconds": 0.15},
}
NOTHING: dict[str, Any] = {
    "lossy": "refused", "codecs": [], "family": "dense", "generation": None, "chosen": None, "beaten": [],
    "given_up": "", "measured_seconds": None, "seconds_without_plan": None, "profile": None, "links": None,
    "levels": [],
}  # fmt: skip


def test_a_job_without_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    say_communication(NOTHING, as_json=False)
    said = capsys.readouterr().out
    assert "no communication plan" in said
    assert "not measured" in said


def test_a_plan_is_shown_with_the_plans_it_beat(capsys: pytest.CaptureFixture[str]) -> None:
    document = {
        **NOTHING,
        "lossy": "allowed",
        "codecs": ["fp16"],
        "chosen": {"planner": "cupcake", "codec": "fp16", "buffer_bytes": 8_000_000, "predicted": PREDICTED},
        "beaten": [DENSE],
        "measured_seconds": 0.11,
        "seconds_without_plan": 0.16,
        "links": {"told_by": "emulated", "between": {"bytes_per_second": 1.25e8, "latency_seconds": 1e-3}},
        "levels": [
            {"gpus": 2, "servers": 1, "planner": "cupcake", "codec": "fp16", "predicted_seconds": 0.1,
             "measured_seconds": None, "speedup": 1.5, "given_up": "it lost"},
        ],
    }  # fmt: skip
    say_communication(document, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    chosen = next(line for line in lines if "→ cupcake" in line)
    assert chosen.split()[2:] == ["fp16", "100.0", "ms", "110.0", "ms", "5.0", "MB", "8.0", "MB"]
    beaten = next(line for line in lines if line.strip().startswith("dense"))
    assert "150.0 ms" in beaten
    assert "160.0 ms" in beaten
    assert any("1 Gbit/s and 1,000 µs" in line for line in lines)
    assert any("given up" in line and "1.50" in line for line in lines)


def test_naming_codecs_allows_lossy_plans() -> None:
    assert override_body({"codecs": ["fp16"]}) == {"codecs": ["fp16"], "lossy": "allowed"}
    assert override_body({"lossy": "refused"}) == {"lossy": "refused"}
    assert override_body({}) == {}
