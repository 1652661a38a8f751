"""Inputs of requests as tensors: validated, and refused with the right form."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from punctual import as_tensor


def test_numbers_become_a_tensor_of_the_dtype() -> None:
    assert as_tensor([1, 2.5]).dtype == torch.float32
    assert as_tensor([[1, 2], [3, 4]], shape=(2,), dtype=torch.int8).tolist() == [[1, 2], [3, 4]]
    assert as_tensor([[[1], [2]]], shape=(None, 1)).shape == (1, 2, 1)
    assert as_tensor([0.1], dtype=torch.float64).tolist() == [0.1]
    assert as_tensor([True, False], dtype=torch.bool).tolist() == [True, False]


@pytest.mark.parametrize(
    ("inputs", "asked", "words"),
    [
        (["one"], {}, "an input must be a number: "),
        ([None], {}, "an input must be a number: "),
        ([{"a": 1}], {}, "an input must be a number: "),
        ([[1, 2], [3]], {"shape": (2,)}, r"of shape \(2\): "),
        ([[1, 2, 3]], {"shape": (2,)}, r"of shape \(2\); these have the shape \(3,\)"),
        ([1], {"shape": (None,)}, r"of shape \(any\); these have the shape \(\)"),
        ([1.5], {"dtype": torch.int64}, "of whole numbers"),
        ([300], {"dtype": torch.uint8}, "beyond the range of torch.uint8"),
        ([1e300], {}, "beyond the range of torch.float32"),
        ([2**70], {"dtype": torch.int64}, "of whole numbers: "),
    ],
)
def test_wrong_inputs_are_a_value_error(inputs: list[Any], asked: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        as_tensor(inputs, **asked)
