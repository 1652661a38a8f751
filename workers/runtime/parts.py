"""The things a function builds: model, optimizer, scheduler, data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from moe.gating.curriculum import Curriculum
from punctual.function import TrainingFunction
from punctual.protocol.hyperparameters import RANDOM_ORDER
from punctual.randomness import derive_seed, seed_generators
from workers.runtime.assignment import Assignment, Device
from workers.runtime.batches import BatchLoader, dataset_size
from workers.runtime.curriculum import CurriculumOrder, build_order
from workers.runtime.failures import WorkerFailureError, blaming_the_function
from workers.runtime.host_experts import move_rest
from workers.runtime.returned import check_dataset, check_model, check_optimizer, check_scheduler
from workers.runtime.state.experts import ExpertHosts, ExpertStates
from workers.runtime.topology import Topology


@dataclass
class TrainingParts:
    """What training consists of, as the function built it.

    Attributes:
        curriculum: the order of samples if it follows what they did before; None until the loader is built.
        experts: which ranks have which experts, where these are spread.
        kept_elsewhere: returns the value of a parameter whose memory does not hold it, by its name; None for
            any other parameter.
        topology: where the ranks of the generation are.
    """

    function: TrainingFunction
    module: nn.Module
    optimizer: Optimizer
    scheduler: Any | None
    device: torch.device
    curriculum: CurriculumOrder | None = None
    experts: ExpertHosts = field(default_factory=ExpertHosts)
    kept_elsewhere: Callable[[str], Tensor | None] = lambda _name: None
    topology: Topology = field(default_factory=Topology)

    @property
    def expert_states(self) -> ExpertStates:
        """What takes the experts of this rank out of states, and puts them back."""
        return ExpertStates(self.experts, self.module, self.optimizer)

    @property
    def parameter_bytes(self) -> int:
        """Bytes of gradients that an iteration synchronises."""
        return sum(p.numel() * p.element_size() for p in self.module.parameters() if p.requires_grad)


def select_device(assigned: Device) -> torch.device:
    """The torch device of this worker; emulated accelerators compute on the CPU.

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


def build_parts(
    function: TrainingFunction, device: torch.device, seed: int, topology: Topology | None = None
) -> TrainingParts:
    """Let the function build model, optimizer and scheduler; every rank gets the same initial model.

    Experts that may be spread are in host memory until a synchroniser takes them to the device.

    Raises:
        WorkerFailureError: `function_error`.
    """
    seed_generators(derive_seed(seed, "initial model"))
    with blaming_the_function("init_model()"):
        module = check_model(function.init_model())
        move_rest(function, module, device)
        # A batch that was tried in init_model() is no part of the training.
        module.zero_grad(set_to_none=True)
    with blaming_the_function("init_optimizer()"):
        optimizer = check_optimizer(function.init_optimizer(module))
    with blaming_the_function("init_scheduler()"):
        scheduler = check_scheduler(function.init_scheduler(optimizer), optimizer)
    return TrainingParts(function, module, optimizer, scheduler, device, topology=topology or Topology())


def build_dataset(function: TrainingFunction, seed: int) -> Any:
    """Let the function build its data set.

    Raises:
        WorkerFailureError: `function_error`.
    """
    seed_generators(derive_seed(seed, "data set"))
    with blaming_the_function("init_dataset()"):
        return check_dataset(function.init_dataset())


def build_loader(assignment: Assignment, parts: TrainingParts, dataset: Any, world_size: int) -> BatchLoader:
    """The loader of this rank's share of every batch, in the order that the job asks for.

    Raises:
        WorkerFailureError: `function_error`.
    """
    name = assignment.settings.sample_order
    order = build_order(
        None if name == RANDOM_ORDER else Curriculum(name),
        parts.module,
        dataset_size(dataset),
        assignment.global_batch_size,
        assignment.seed,
    )
    parts.curriculum = order if isinstance(order, CurriculumOrder) else None
    return BatchLoader(
        dataset,
        parts.function.collate,
        order,
        rank=assignment.rank,
        world_size=world_size,
        device=parts.device,
        data_workers=assignment.settings.data_workers,
    )
