"""Excludes code that depends on token counts from `torch.compile`. Importing this imports the compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


@torch.compiler.disable(
    reason="a MoELayer is not compiled, as its rows differ in each pass: leave fullgraph=True out"
)
def run_uncompiled(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call the function without compiling it."""
    return function(*arguments)
