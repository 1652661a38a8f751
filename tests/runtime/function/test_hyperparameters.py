"""Which hyperparameters the platform reads, and which it leaves to the function."""

from __future__ import annotations

from typing import Any

import pytest

from punctual.client.requests import job_body
from punctual.errors import InvalidInputError
from punctual.protocol.hyperparameters import HyperparameterError, Settings, find_problems, read_settings


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("global_batch_size", [0, -1, 2.0, "8", True, 2**31, 10**5000]),
        ("gradient_clip_norm", [-1.0, -1, float("nan"), float("inf"), "one", "1.0", True, [1], {}, 10**400]),
        ("evaluate_every", [-1, 2.5, "10", True, float("inf"), [5]]),
        ("compare_parameters_every", [-1, 1.5, "often", True]),
        ("data_workers", [-1, 33, "4", 1.0, True]),
        ("num_workers", [-1, 33, "4", 1.0, True]),
        ("nonfinite", ["ignore", True, 100, ["stop"], ""]),
    ],
)
def test_a_value_of_the_wrong_type_is_named_with_the_right_type(name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(HyperparameterError, match=f"hyperparameter {name}: .*not "):
            read_settings({"global_batch_size": 8, name: value})


def test_a_batch_size_is_needed() -> None:
    assert list(find_problems({"global_batch_size": None})) == ["global_batch_size"]
    assert find_problems({}, complete=False) == {}


@pytest.mark.parametrize("off", [0, 0.0, None])
def test_a_clipping_norm_of_zero_or_null_is_none(off: Any) -> None:
    assert read_settings({"global_batch_size": 8, "gradient_clip_norm": off}).gradient_clip_norm is None


def test_null_equals_an_omitted_value() -> None:
    names = ("gradient_clip_norm", "evaluate_every", "data_workers", "num_workers", "nonfinite")
    assert read_settings({"global_batch_size": 8, **dict.fromkeys(names)}) == Settings(8)


def test_settings_are_read_as_given() -> None:
    said = {"gradient_clip_norm": 1, "evaluate_every": 5, "num_workers": 3, "nonfinite": "continue"}
    assert read_settings({"global_batch_size": 8, **said}) == Settings(
        8, 1.0, 5, data_workers=3, stops_on_nonfinite=False
    )


def test_two_names_of_one_setting_must_agree() -> None:
    assert list(find_problems({"global_batch_size": 8, "num_workers": 2, "data_workers": 4})) == [
        "num_workers"
    ]
    assert find_problems({"global_batch_size": 8, "num_workers": 2, "data_workers": 2}) == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [("gpus", 4), ("num_gpus", "2"), ("n-gpus", 1), ("WORLD_SIZE", 8.0), ("nproc_per_node", 2)],
)
def test_a_count_of_gpus_is_refused(name: str, value: Any) -> None:
    assert "Punctual decides how many GPUs" in find_problems({"global_batch_size": 8, name: value})[name]


@pytest.mark.parametrize(
    "hyperparameters",
    [
        {"num_nodes": 2708},
        {"nodes": 34},
        {"devices": 4},
        {"replicas": 2},
        {"workers": 2},
        {"gpu": 0},
        {"gpus": "0,1"},
        {"gpus": [0, 1]},
        {"gpus": "auto"},
        {"gpus": -1},
        {"gpus": True},
        {"gpus": 0.5},
        {"gpus": float("inf")},
        {"world_size": 10_000_000},
        {"world_size": 10**5000},
        {"model": {"world_size": 2}},
        {"environment": {"num_gpus": 2}},
        {"clip": "one", "evaluate": -1, "nonfinites": 3},
    ],
)
def test_the_functions_own_hyperparameters_pass_unchanged(hyperparameters: dict[str, Any]) -> None:
    assert find_problems({"global_batch_size": 8, **hyperparameters}) == {}


def test_the_client_refuses_before_anything_is_sent() -> None:
    with pytest.raises(InvalidInputError, match="gradient_clip_norm.*number from 0"):
        job_body(
            "f", {"hyperparameters": {"gradient_clip_norm": "1.0"}, "batch_size": 8, "max_iterations": 5}
        )
