"""Runs iterations of a function in the test's own process, which is a rank of a process group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from moe.gating.curriculum import Curriculum
from punctual import TrainingFunction
from punctual.protocol.hyperparameters import RANDOM_ORDER
from workers.runtime.at_home.local_agent import runtime_plan
from workers.runtime.data.batches import BatchLoader
from workers.runtime.function.parts import build_dataset, build_parts, build_sample_order
from workers.runtime.iterating.iteration import IterationRunner
from workers.runtime.runtime_plan import RuntimePlan
from workers.runtime.synchronisation.together import Synchronisation

CPU = torch.device("cpu")


def runner_of(
    function: TrainingFunction,
    *,
    batch: int = 8,
    seed: int = 0,
    synchronisers: Sequence[Mapping[str, Any]] = (),
    family: str = "dense",
    curriculum: Curriculum | None = None,
    clip_norm: float | None = None,
) -> IterationRunner:
    """Return the runner of the function's iterations on all ranks of this process group."""
    parts = build_parts(function, CPU, seed)
    dataset = build_dataset(function, seed)
    plan = RuntimePlan.from_message(runtime_plan(*synchronisers, family=family))
    synchronisation = Synchronisation(plan, parts)
    synchronisation.begin_alike()
    order = build_sample_order(parts, dataset, curriculum or RANDOM_ORDER, batch, seed)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    loader = BatchLoader(
        dataset,
        function.collate,
        order,
        rank=rank,
        world_size=world_size,
        device=CPU,
        data_workers=int(function.hyperparameters.get("num_workers", 0)),
    )
    return IterationRunner(
        parts,
        synchronisation,
        loader,
        group=None,
        world_size=world_size,
        rank=rank,
        seed=seed,
        clip_norm=clip_norm,
        pace=None,
    )
