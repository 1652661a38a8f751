"""The objects that a function builds: model, optimizer, scheduler, data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from moe.gating.curriculum import Curriculum
from punctual.function import TrainingFunction
from punctual.moe import moe_layers
from punctual.protocol.hyperparameters import RANDOM_ORDER
from punctual.randomness import derive_seed, seed_generators
from workers.runtime.assignment import Assignment, Device
from workers.runtime.data.batches import BatchLoader, dataset_size
from workers.runtime.data.curriculum import CurriculumOrder, build_order
from workers.runtime.data.sample_order import SampleOrder, largest_local_batch
from workers.runtime.data.task_order import TaskOrder, build_task_order
from workers.runtime.experts.host_experts import move_rest
from workers.runtime.failures import WorkerFailureError, blaming_the_function
from workers.runtime.function.returned import (
    check_dataset,
    check_model,
    check_optimizer,
    check_scheduler,
    refused,
)
from workers.runtime.state.experts import ExpertHosts, ExpertStates
from workers.runtime.tiers.disk_share import DiskShare
from workers.runtime.tiers.usage import TierUsage
from workers.runtime.topology import Topology


@dataclass
class TrainingParts:
    """The objects that the function built for training.

    Attributes:
        curriculum: the order of samples if it is a curriculum; None until the loader is built.
        experts: which ranks have which experts, if these are spread.
        disk: limits on this rank's use of its server's disk.
        tier_usage: returns the usage of the experts' tiers since they were built.
        kept_elsewhere: returns, by name, the value of a parameter that is in a tier instead of its own
            memory; None for any other parameter.
        tasks: the order of samples if the function declares tasks; None until the loader is built.
        topology: servers of the generation's ranks.
    """

    function: TrainingFunction
    module: nn.Module
    optimizer: Optimizer
    scheduler: Any | None
    device: torch.device
    curriculum: CurriculumOrder | None = None
    experts: ExpertHosts = field(default_factory=ExpertHosts)
    disk: DiskShare = field(default_factory=DiskShare)
    tier_usage: Callable[[], TierUsage] = TierUsage
    kept_elsewhere: Callable[[str], Tensor | None] = lambda _name: None
    tasks: TaskOrder | None = None
    topology: Topology = field(default_factory=Topology)

    @property
    def expert_states(self) -> ExpertStates:
        """The object that extracts this rank's experts from states, and restores them."""
        return ExpertStates(self.experts, self.module, self.optimizer)

    @property
    def parameter_bytes(self) -> int:
        """Bytes of gradients that an iteration synchronises."""
        return sum(p.numel() * p.element_size() for p in self.module.parameters() if p.requires_grad)

    def local_batch(self, assignment: Assignment, world_size: int) -> int:
        """Return the local batch size that sets an emulated device's time: this rank's in a task order, else
        the largest of any rank."""
        if self.tasks is None:
            return largest_local_batch(assignment.global_batch_size, world_size)
        return max(1, len(self.tasks.local_places(assignment.rank, world_size)))


def select_device(assigned: Device) -> torch.device:
    """Return the torch device of this worker; emulated accelerators compute on the CPU.

    Raises:
        WorkerFailureError: `start_failed` when the assigned GPU cannot be used.
    """
    if assigned.kind != "cuda":
        return torch.device("cpu")
    if not torch.cuda.is_available() or assigned.index >= torch.cuda.device_count():
        raise WorkerFailureError(
            "start_failed",
            f"GPU {assigned.index} cannot be used by this worker (torch sees {torch.cuda.device_count()})",
        )
    device = torch.device("cuda", assigned.index)
    torch.cuda.set_device(device)
    return device


def build_parts(function: TrainingFunction, device: torch.device, seed: int) -> TrainingParts:
    """Let the function build model, optimizer and scheduler; every rank gets the same initial model.

    Experts that may be spread stay in host memory until a synchroniser moves them to the device.

    Raises:
        WorkerFailureError: `function_error`.
    """
    seed_generators(derive_seed(seed, "initial model"))
    with blaming_the_function("init_model()"):
        module = check_model(function.init_model())
        move_rest(function, module, device)
        # A trial batch in init_model() must not contribute gradients.
        module.zero_grad(set_to_none=True)
    with blaming_the_function("init_optimizer()"):
        optimizer = check_optimizer(function.init_optimizer(module))
    with blaming_the_function("init_scheduler()"):
        scheduler = check_scheduler(function.init_scheduler(optimizer), optimizer)
    return TrainingParts(function, module, optimizer, scheduler, device)


def build_dataset(function: TrainingFunction, seed: int) -> Any:
    """Let the function build its data set.

    Raises:
        WorkerFailureError: `function_error`.
    """
    seed_generators(derive_seed(seed, "data set"))
    with blaming_the_function("init_dataset()"):
        return check_dataset(function.init_dataset())


def build_sample_order(
    parts: TrainingParts, dataset: Any, name: str, global_batch_size: int, seed: int
) -> SampleOrder:
    """Build the order of samples; store it in `parts` if it is a task order or a curriculum.

    Args:
        name: the hyperparameter `sample_order`.

    Raises:
        WorkerFailureError: `function_error`.
    """
    curriculum = None if name == RANDOM_ORDER else Curriculum(name)
    size = dataset_size(dataset)
    parts.tasks = build_task_order(parts.function, dataset, global_batch_size, seed)
    if parts.tasks is not None:
        if curriculum is not None:
            raise refused(f'sample_order is "{name}", which tasks() does not allow: leave one of them out')
        if any(layer.capacity_factor is not None for layer in moe_layers(parts.module).values()):
            raise refused("a MoELayer has a capacity_factor, which tasks() does not allow: leave it out")
        return parts.tasks
    order = build_order(curriculum, parts.module, size, global_batch_size, seed)
    parts.curriculum = order if isinstance(order, CurriculumOrder) else None
    return order


def build_loader(assignment: Assignment, parts: TrainingParts, dataset: Any, world_size: int) -> BatchLoader:
    """Return the loader of this rank's share of every batch, in the job's order.

    Raises:
        WorkerFailureError: `function_error`.
    """
    order = build_sample_order(
        parts, dataset, assignment.settings.sample_order, assignment.global_batch_size, assignment.seed
    )
    return BatchLoader(
        dataset,
        parts.function.collate,
        order,
        rank=assignment.rank,
        world_size=world_size,
        device=parts.device,
        data_workers=assignment.settings.data_workers,
    )
