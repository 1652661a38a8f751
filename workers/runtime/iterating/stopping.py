"""A function's `should_stop`, which runs on rank 0 alone."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist

from workers.runtime.experts.spread_experts import keeps_experts
from workers.runtime.failures import blaming_the_function
from workers.runtime.function.parts import TrainingParts
from workers.runtime.iterating.evaluation import alone
from workers.runtime.synchronisation.together import Synchronisation


def function_stops(
    parts: TrainingParts, synchronisation: Synchronisation, values: Mapping[str, float] | None
) -> bool:
    """Return whether the function stops the training; False on all ranks but the first. All ranks call this
    together.

    Args:
        values: loss and metrics on the first rank, if the function is to be called; None otherwise.

    Raises:
        WorkerFailureError: the function raised.
    """
    leads = values is not None
    with _kept_experts(parts, synchronisation, leads=leads):
        if values is None:
            return False
        with blaming_the_function("should_stop()"), alone(parts.module):
            return bool(parts.function.should_stop(values))


def _kept_experts(
    parts: TrainingParts, synchronisation: Synchronisation, *, leads: bool
) -> AbstractContextManager[None]:
    """Give the first rank all experts if its function keeps the model, so that the function can run it."""
    if dist.get_world_size() == 1 or not parts.experts.hosts:
        return nullcontext()
    spread = [parts.module.get_parameter(name) for name in parts.experts.hosts]
    keeps = torch.tensor([int(leads and keeps_experts(parts.function, spread))])
    dist.broadcast(keeps, src=0)
    return synchronisation.whole() if int(keeps) else nullcontext()
