"""Inputs of requests as tensors, for `predict`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# torch is imported inside the function only: see punctual/randomness.py.


def as_tensor(
    inputs: Sequence[Any],
    shape: Sequence[int | None] = (),
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """Make one tensor of inputs that are numbers, or nested lists of numbers.

    Args:
        inputs: one element for each input, as `predict` gets them.
        shape: of one input; None stands for any size. Empty: an input is a number.
        dtype: default `torch.float32`. An integer dtype takes whole numbers alone.
        device: default the CPU.

    Raises:
        ValueError: an input has another shape, holds something that is no number, or a number that `dtype`
            does not have. From `predict` it answers the request that holds the input with a 400.
    """
    import torch

    dtype = dtype or torch.float32
    is_real = dtype.is_floating_point
    expected = f"an input must be {_described(shape)}{'' if is_real else ', of whole numbers'}"
    try:
        # Of text, objects and None torch makes no tensor; of lists of unequal lengths neither.
        found = torch.tensor(inputs, dtype=torch.float64 if is_real else None)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(f"{expected}: {error}") from error
    sizes = tuple(found.shape[1:])
    if len(sizes) != len(shape) or any(n not in (None, size) for n, size in zip(shape, sizes, strict=True)):
        raise ValueError(f"{expected}; these have the shape {sizes}")
    if found.dtype.is_floating_point and not is_real:
        raise ValueError(expected)
    made = found.to(dtype)
    fits = torch.isfinite(made) if is_real else made.to(found.dtype) == found
    if not fits.all():
        raise ValueError(f"{expected}; a number is beyond the range of {dtype}")
    return made.to(device)


def _described(shape: Sequence[int | None]) -> str:
    if not shape:
        return "a number"
    return (
        "nested lists of numbers of shape (" + ", ".join("any" if n is None else str(n) for n in shape) + ")"
    )
