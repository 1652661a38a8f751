"""Gradients that come in several pieces.

A nested backward pass adds a separate piece of a gradient. `torch.utils.checkpoint` with `use_reentrant=True`
runs one for each recomputed part. A gradient is ready after its last piece, which cannot be recognised. The
pieces of an iteration are therefore counted; if a gradient has several, all gradients are averaged after the
backward pass.
"""

from __future__ import annotations

from torch import Tensor
from torch.autograd.function import BackwardCFunction


def has_functions_in_python(loss: Tensor) -> bool:
    """Return whether the backward pass of the loss calls functions written in Python: only these start nested
    backward passes."""
    nodes = [loss.grad_fn]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        if isinstance(node, BackwardCFunction):
            return True
        following = [] if node is None else [each for each, _ in node.next_functions]
        new = {each for each in following if each not in seen}
        seen |= new
        nodes += new
    return False
