"""Runs a function's `evaluate` on one worker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn

from punctual.function import TrainingFunction
from punctual.randomness import derive_seed, seed_generators
from workers.runtime.failures import blaming_the_function
from workers.runtime.function.returned import check_metric_names, numbers_of
from workers.runtime.iterating.mixtures import without_peers


def evaluate(function: TrainingFunction, module: nn.Module, seed: int) -> dict[str, float]:
    """Return the function's metrics of the model, in evaluation mode and without gradients.

    Raises:
        WorkerFailureError: the function raised, or returned something other than numbers.
    """
    seed_generators(derive_seed(seed, "evaluate"))
    module.eval()
    try:
        with blaming_the_function("evaluate()"), torch.no_grad(), alone(module):
            values = numbers_of(function.evaluate(module), "evaluate()")
        check_metric_names(values, "evaluate()")
        return values
    finally:
        module.train()


@contextmanager
def alone(module: nn.Module) -> Iterator[None]:
    """Hide the process group from code that runs on one worker alone.

    Metrics of some libraries gather from all ranks once torch.distributed is initialised, and
    mixture-of-experts layers exchange counts. The other ranks do not evaluate, so this rank would wait for
    them for ever.
    """
    world = dist.group.WORLD
    dist.group.WORLD = None
    try:
        with without_peers(module):
            yield
    finally:
        dist.group.WORLD = world
