"""Conversion of requests' inputs to tensors, for `predict`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# torch is imported only inside the function: see punctual/randomness.py.


def as_tensor(
    inputs: Sequence[Any],
    shape: Sequence[int | None] = (),
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """Make one tensor of inputs that are numbers, or nested lists of numbers.

    Args:
        inputs: one element for each input, as `predict` receives them.
        shape: of one input; None means any size. Empty: an input is a number.
        dtype: default `torch.float32`. An integer dtype accepts only whole numbers.
        device: default the CPU.

    Raises:
        ValueError: an input has another shape, contains something other than numbers, or a number out of
            `dtype`'s range. From `predict` it answers the request with that input with a 400.
    """
    import torch

    dtype = dtype or torch.float32
    is_real = dtype.is_floating_point
    expected = f"an input must be {_described(shape)}{'' if is_real else ', of whole numbers'}"
    try:
        # torch rejects text, objects, None, and lists of unequal lengths.
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
