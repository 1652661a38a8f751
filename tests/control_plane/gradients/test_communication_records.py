"""Workers' reports on gradients are bounded and consistent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from punctual.protocol import limits
from punctual.protocol.communication import (
    CodecTimes,
    CommunicationProfile,
    CommunicationWindow,
)
from punctual.protocol.reports import check

PROFILE: dict[str, Any] = {
    "gpus": 2,
    "iterations": 8,
    "other_seconds": 0.02,
    "tensors": [
        {"name": "head.weight", "elements": 640, "gap_seconds": 0.001},
        {"name": "table.weight", "elements": 64_000, "gap_seconds": 0.002},
    ],
    "sparse": [
        {
            "name": "table.weight",
            "width": 64,
            "density": 0.01,
            "beta": 0.7,
            "sums": [{"workers": 2, "density": 0.018}],
            "skew": 0.5,
            "rows": False,
        }
    ],
}
WINDOW: dict[str, Any] = {"plan": "0" * 64, "iteration": 50, "iteration_seconds": [0.1, 0.11]}
TENSOR = PROFILE["tensors"][0]
TIMES = {
    "codec": "dgc",
    "device": "gpu",
    "elements": [1, 1024],
    "encode_seconds": [1e-4, 2e-4],
    "decode_seconds": [1e-5, 1e-5],
}


def changed(part: str, **fields: Any) -> dict[str, Any]:
    """Return the profile with changes to its first tensor or first sparse tensor."""
    first, *others = PROFILE[part]
    return PROFILE | {part: [first | fields, *others]}


def test_valid_worker_measurements_are_accepted() -> None:
    fields, problem = check(CommunicationProfile, json.loads(json.dumps(PROFILE | {"codecs": [TIMES]})))
    assert not problem
    assert fields is not None
    assert fields["tensors"] == PROFILE["tensors"]
    assert fields["sparse"] == PROFILE["sparse"]
    assert fields["codecs"] == [TIMES]
    fields, problem = check(CommunicationWindow, WINDOW)
    assert (fields and fields["iteration_seconds"], problem) == ([0.1, 0.11], "")


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (changed("tensors", name="x" * 201), "at most 200 characters"),
        (changed("tensors", name=""), "at least 1 character"),
        (changed("tensors", name="a\N{RIGHT-TO-LEFT OVERRIDE}b"), "printable characters only"),
        (changed("tensors", elements=-1), "greater than or equal to 0"),
        (changed("tensors", gap_seconds=float("inf")), "finite"),
        (changed("tensors", name="table.weight"), "two tensors have one name"),
        (PROFILE | {"tensors": [TENSOR] * (limits.TENSORS_OF_A_MODEL + 1)}, "at most 4096 items"),
        (PROFILE | {"tensors": []}, "at least 1 item"),
        (changed("sparse", name="other"), "there is no tensor 'other'"),
        (changed("sparse", width=7), "in rows of 7"),
        (changed("sparse", density=1.5), "less than or equal to 1"),
        (PROFILE | {"sparse": PROFILE["sparse"] * 2}, "told twice"),
        (PROFILE | {"codecs": [TIMES | {"elements": [2, 1]}]}, "sizes ascend"),
        (PROFILE | {"codecs": [TIMES | {"elements": [1]}]}, "for each size"),
    ],
)
def test_a_profile_that_makes_no_sense_is_refused(value: dict[str, Any], complaint: str) -> None:
    fields, problem = check(CommunicationProfile, value)
    assert fields is None
    assert complaint in problem


@pytest.mark.parametrize(
    "change",
    [
        {"plan": "x"},
        {"iteration_seconds": []},
        {"iteration_seconds": [0.1] * 257},
        {"push_imbalance": 0.5},
        {"pull_imbalance": float("nan")},
        {"residual_norm": float("inf")},
        {"received_bytes": -1},
        {"spans": [{"stage": "sleep", "group": 0, "begin_seconds": 0.0, "end_seconds": 1.0}]},
    ],
)
def test_a_window_that_makes_no_sense_is_refused(change: dict[str, Any]) -> None:
    assert check(CommunicationWindow, WINDOW | change)[0] is None


def test_a_table_of_codec_times_has_a_size_at_least() -> None:
    assert check(CodecTimes, TIMES)[0] is not None
    assert check(CodecTimes, TIMES | {"elements": [], "encode_seconds": [], "decode_seconds": []})[0] is None
