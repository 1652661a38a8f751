"""The complete state of training at an iteration boundary, from which other workers can continue.

It is always read with `weights_only=True`: a state holds tensors, numbers, strings, lists and dicts, never
code. `portable` encodes some other types as these and refuses the rest.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from workers.runtime.data.sample_order import EMPTY_DIGEST
from workers.runtime.failures import WorkerFailureError, blaming_the_function
from workers.runtime.function.parts import TrainingParts
from workers.runtime.function.returned import own_state
from workers.runtime.state.layout import OwnState, Path, take_apart
from workers.runtime.state.portable import UnstorableError
from workers.runtime.state.shards import Shard, ShardCutter


@dataclass
class Progress:
    """A job's progress.

    Attributes:
        iteration: iterations done.
        sample_order_digest: chained SHA-256 over the indices of all samples seen, in order.
        history: `[iterations done, values]` of selected iterations.
        nonfinite_since: the iteration (from 1) since which every loss is NaN or infinite; None: the last loss
            is finite.
        nonfinite_runs: number of runs of such losses so far.
        first_samples: digests of the data set's first samples (`data_comparison.py`).
        expert_paths: state of `path_recorder.py`.
    """

    iteration: int = 0
    sample_order_digest: str = EMPTY_DIGEST
    history: list[list[Any]] = field(default_factory=list)
    nonfinite_since: int | None = None
    nonfinite_runs: int = 0
    first_samples: dict[str, Any] | None = None
    expert_paths: dict[str, Any] | None = None


def capture(
    parts: TrainingParts, progress: Progress, *, generation: int, global_batch_size: int
) -> dict[str, Any]:
    """Return the state after `progress.iteration` iterations; tensors are shared with the live model.

    Raises:
        WorkerFailureError: a `state_dict()` of the function or its objects raised.
    """
    return {
        "generation": generation,
        "iteration": progress.iteration,
        "sample_position": progress.iteration * global_batch_size,
        "sample_order_digest": progress.sample_order_digest,
        "history": progress.history,
        "nonfinite": [progress.nonfinite_since, progress.nonfinite_runs],
        "first_samples": progress.first_samples,
        "curriculum": None if parts.curriculum is None else parts.curriculum.state(progress.iteration),
        "expert_paths": progress.expert_paths,
        "trained": [name for name, each in parts.module.named_parameters() if each.requires_grad],
        **_states_of(parts),
        "random": {"torch": torch.get_rng_state(), "python": random.getstate()},
    }


def _states_of(parts: TrainingParts) -> dict[str, Any]:
    """Return the states of model, optimizer, scheduler and function."""
    with blaming_the_function("state_dict() of the model"):
        model = parts.module.state_dict()
    with blaming_the_function("state_dict() of the optimizer"):
        optimizer = parts.optimizer.state_dict()
    with blaming_the_function("state_dict() of the scheduler"):
        scheduler = None if parts.scheduler is None else parts.scheduler.state_dict()
    with blaming_the_function("state_dict()"):
        own = own_state(parts.function)
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler, "function": own}


@contextmanager
def _refusing_what_cannot_be_stored() -> Iterator[None]:
    """Turn UnstorableError into a failure that names the value's place and the allowed types."""
    try:
        yield
    except UnstorableError as error:
        whose, *places = error.path
        where = "".join(f"[{place!r}]" for place in places) or "it"
        owner = "" if whose == "function" else f" of the {whose}"
        raise WorkerFailureError(
            "function_error",
            f"state_dict(){owner}: {where} {error.problem}, which a stored state cannot hold; give numbers, "
            "strings, lists, dicts, tensors or NumPy arrays, and make the rest of them in load_state_dict()",
        ) from error


class ShardCapture:
    """Captures one rank's shards of a generation's states."""

    def __init__(
        self, parts: TrainingParts, *, generation: int, global_batch_size: int, rank: int, world_size: int
    ) -> None:
        self._parts = parts
        self._generation = generation
        self._global_batch_size = global_batch_size
        parameters = frozenset(name for name, _ in parts.module.named_parameters(remove_duplicate=False))
        self._experts = parts.expert_states
        self._cutter = ShardCutter(parameters, rank=rank, world_size=world_size)

    def shard(self, progress: Progress, *, copy: bool, own: OwnState, leave: bool = False) -> Shard:
        """Return this rank's shard of the state after `progress.iteration` iterations.

        Args:
            own: state that only this rank has.
            copy: copy all values; otherwise the shard is valid only until the next iteration.
            leave: leave values on the device until their bytes are read; not with ``copy``.

        Raises:
            WorkerFailureError: a `state_dict()` raised, or its result cannot be stored.
        """
        state = capture(
            self._parts, progress, generation=self._generation, global_batch_size=self._global_batch_size
        )
        with _refusing_what_cannot_be_stored():
            shared, experts = self._experts.apart(state)
            return self._cutter.cut(shared, copy=copy, own=own, experts=experts, leave=leave)


def homes_of(parts: TrainingParts) -> dict[Path, Tensor]:
    """Return the model's own tensors by their places in a state, so that a state is received in place."""
    module = parts.module
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return {("model", name): tensor for name, tensor in named if parts.experts.is_here(name)}


def state_bytes(parts: TrainingParts) -> int:
    """Return the bytes of a state on the device: the tensors of model and optimizer."""
    here = [each for name, each in parts.module.named_parameters() if parts.experts.is_here(name)]
    tensors = [*here, *parts.module.buffers()]
    for values in parts.optimizer.state.values():
        tensors += [value for value in values.values() if isinstance(value, Tensor)]
    return sum(tensor.nbytes for tensor in tensors if not tensor.is_sparse)


def restore(parts: TrainingParts, state: Mapping[str, Any], *, global_batch_size: int) -> Progress:
    """Load a state into newly built parts, which keep its tensors; return the job's progress.

    Raises:
        WorkerFailureError: `start_failed` if it is not a state of this job, `function_error` if the function
            cannot load its part.
    """
    try:
        fits = state["sample_position"] == state["iteration"] * global_batch_size
        version, numbers, gauss = state["random"]["python"]
        # States of earlier versions lack "nonfinite".
        since, runs = state.get("nonfinite", (None, 0))
        progress = Progress(
            state["iteration"],
            state["sample_order_digest"],
            state["history"],
            since,
            runs,
            state.get("first_samples"),
            state.get("expert_paths"),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise WorkerFailureError("start_failed", f"the checkpoint cannot be read: {error}") from error
    if not fits:
        raise WorkerFailureError("start_failed", "the checkpoint was written with another global batch size")
    with blaming_the_function("taking the state back"):
        _load_model(parts, state["model"])
        _freeze_as(parts.module, state.get("trained"))
        parts.optimizer.load_state_dict(state["optimizer"])
        if parts.scheduler is not None and state["scheduler"] is not None:
            parts.scheduler.load_state_dict(state["scheduler"])
        parts.function.load_state_dict(state["function"])
    if parts.curriculum is not None:
        parts.curriculum.load_state(state["curriculum"])
    torch.set_rng_state(state["random"]["torch"])
    random.setstate((version, tuple(numbers), gauss))
    return progress


def _load_model(parts: TrainingParts, state: Mapping[str, Tensor]) -> None:
    """Load this rank's part of the model.

    Raises:
        RuntimeError: the state is of another model.
    """
    elsewhere = parts.experts.elsewhere
    if not elsewhere:
        parts.module.load_state_dict(state)
        return
    here = {name: tensor for name, tensor in state.items() if name not in elsewhere}
    found = parts.module.load_state_dict(here, strict=False)
    missing = [name for name in found.missing_keys if name not in elsewhere]
    if missing or found.unexpected_keys:
        raise RuntimeError(f"the state lacks {missing}; the model lacks {found.unexpected_keys}")


def _freeze_as(module: nn.Module, trained: Collection[str] | None) -> None:
    """Set `requires_grad` as in a state; None (states of earlier versions) changes nothing."""
    if trained is not None:
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(name in trained)


def check_portable(parts: TrainingParts) -> None:
    """Check before training that the initial state can be stored.

    Raises:
        WorkerFailureError: `function_error`, with the reason.
    """
    states = _states_of(parts)
    with _refusing_what_cannot_be_stored():
        take_apart(states, lambda _path: False)


def final_weights(parts: TrainingParts) -> dict[str, Tensor]:
    """Return the model's weights as plain CPU tensors by name."""
    with blaming_the_function("state_dict() of the model"):
        state = parts.module.state_dict()
    return {name: value.detach().cpu().clone() for name, value in state.items() if isinstance(value, Tensor)}
