"""Tiers of expert states in training (MoESys).

An expert's parameters are on the device while it computes. Otherwise its state is in host memory or in its
file. The parameters of its module keep their shape without memory. In the backward pass an expert is
recomputed from its rows, and its gradients are kept in host memory until the optimizer's step.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from moe.moesys.cache import Key
from moe.moesys.prefetch import predict_experts
from workers.runtime.tiers.disk_share import DiskShare
from workers.runtime.tiers.files import ExpertFiles
from workers.runtime.tiers.host_cache import HostCache, HostState
from workers.runtime.tiers.optimizer_steps import ExpertSteps
from workers.runtime.tiers.usage import TierUsage


class TieredExperts:
    """Experts of one shape whose states are in tiers.

    Attributes:
        host: their states.
        predicted, mispredicted: uses of experts that were fetched ahead, and that were not.
        unused: experts that were fetched ahead and not used.
        stall_seconds: time that computation waited for states.
    """

    def __init__(
        self,
        experts: Mapping[Key, nn.Module],
        optimizer: Optimizer,
        folder: Path,
        host_entries: int,
        max_file_bytes: int | None = None,
        disk: DiskShare | None = None,
    ) -> None:
        """Move the states into files, and free the memory of the experts.

        Args:
            experts: modules with FP32 parameters on the host, by layer and id. Layers are numbered in the
                order in which they compute.
            optimizer: the optimizer of all their parameters.
            folder: folder of the files; its content is deleted.
            host_entries: number of states in host memory.
            max_file_bytes: limit for all files together.
            disk: counts and limits the bytes written.

        Raises:
            ValueError: the experts or the optimizer do not fit.
            WorkerFailureError: the disk has no room.
        """
        self.experts = dict(sorted(experts.items()))
        self._optimizer = optimizer
        first = next(iter(self.experts.values()))
        self.steps = ExpertSteps(optimizer, _shapes_of(first))
        self._skeleton = copy.deepcopy(first).to("meta")
        files = ExpertFiles(folder, self.steps.rows, self.steps.elements, max_file_bytes, disk)
        self.host = HostCache(files, host_entries)
        self.predicted = self.mispredicted = self.unused = 0
        self.stall_seconds = 0.0
        self._layers = sorted({layer for layer, _ in self.experts})
        #: At most half of the entries, so that states in use have room.
        self._max_ahead = host_entries // 2
        self._fetches = ThreadPoolExecutor(1, thread_name_prefix="expert-states")
        self._coming: dict[Key, Future[bool]] = {}
        self._received: dict[Key, int] = {}
        self._received_before: dict[Key, int] = {}
        #: The computing layer, and whether it is in the backward pass.
        self._current: tuple[int, bool] | None = None
        self._numbers = _parameter_numbers(optimizer)
        self._groups = {key: self._groups_of(module) for key, module in self.experts.items()}
        self._hooks: list[Any] = []
        for key, module in self.experts.items():
            self._take_over(key, module)
        self._hooks.append(optimizer.register_state_dict_post_hook(self._add_optimizer_states))
        # It runs before the optimizer's own step and removes the experts' gradients.
        self._hooks.append(optimizer.register_step_pre_hook(lambda *_: self.step()))

    def step(self) -> None:
        """Step all experts that have gradients, in the order of keys, each while the next is fetched."""
        self._drop_fetched(list(self._coming))
        gradients = {key: self._take_gradients(module) for key, module in self.experts.items()}
        due = [key for key, own in gradients.items() if any(gradient is not None for gradient in own)]
        for key, following in zip(due, [*due[1:], None], strict=True):
            if following is not None and self._max_ahead:
                self._fetch([following])
            with self._held(key, is_counted=False) as held:
                self.steps.step(key, held.values, gradients[key], self._groups[key])
                held.is_dirty = True
        self._received_before, self._received = self._received, {}
        self._current = None

    def usage(self) -> TierUsage:
        """Return the totals since the beginning."""
        counts = self.host.counts()
        return TierUsage(
            counts.accesses, counts.hits, self.stall_seconds, counts.bytes_read, counts.bytes_written
        )

    def snapshot(self, key: Key) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
        """Return an expert's parameters by name, and their optimizer states. They are mapped from files, and
        later steps do not change them."""
        self.host.flush()
        values = self.host.files.map(key)
        return self.steps.parameters(values), self.steps.optimizer_states(key, values)

    def give_back(self) -> None:
        """Restore modules' parameters and the optimizer's states in host memory; delete the files."""
        self._drop_fetched(list(self._coming))
        self._fetches.shutdown()
        for hook in self._hooks:
            hook.remove()
        for key, module in self.experts.items():
            with self.host.state(key) as held:
                values = held.values.clone()
            parameters = self.steps.parameters(values)
            states = self.steps.optimizer_states(key, values)
            for (name, parameter), state in zip(module.named_parameters(), states, strict=True):
                parameter.data = parameters[name]
                if state:
                    self._optimizer.state[parameter] = state
            del module.forward
        self.host.files.remove()

    # -- passes of the model

    def forward(self, key: Key, rows: Tensor) -> Tensor:
        """Compute an expert without a graph."""
        if not len(rows):
            return torch.empty_like(rows)
        self._received[key] = self._received.get(key, 0) + len(rows)
        self._enter(key[0], is_backward=False)
        with self._held(key) as held:
            parameters = self.steps.parameters(held.values)
            return self._compute({name: value.to(rows.device) for name, value in parameters.items()}, rows)

    def backward(self, key: Key, rows: Tensor, gradient: Tensor) -> Tensor:
        """Return the gradient of the rows, and keep those of the parameters."""
        if not len(rows):
            # Same as without tiers: an expert without rows has gradients of 0.
            self._add_gradients(key, [torch.zeros(shape) for shape in self.steps.shapes.values()])
            return torch.zeros_like(rows)
        self._enter(key[0], is_backward=True)
        with self._held(key) as held, torch.enable_grad():
            parameters = {
                name: value.detach().to(rows.device).requires_grad_()
                for name, value in self.steps.parameters(held.values).items()
            }
            inputs = rows.detach().requires_grad_()
            output = self._compute(parameters, inputs)
            found = torch.autograd.grad(output, [inputs, *parameters.values()], gradient)
        self._add_gradients(key, [each.cpu() for each in found[1:]])
        return found[0]

    def _compute(self, parameters: Mapping[str, Tensor], rows: Tensor) -> Tensor:
        output: Tensor = torch.func.functional_call(self._skeleton, dict(parameters), (rows,))
        return output

    def _add_gradients(self, key: Key, gradients: Sequence[Tensor]) -> None:
        for parameter, gradient in zip(self.experts[key].parameters(), gradients, strict=True):
            if parameter.requires_grad:
                parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient

    def _take_gradients(self, module: nn.Module) -> list[Tensor | None]:
        gradients = [parameter.grad for parameter in module.parameters()]
        for parameter in module.parameters():
            parameter.grad = None
        return gradients

    # -- fetching ahead

    def _enter(self, layer: int, *, is_backward: bool) -> None:
        """On entering a layer, fetch the experts that the next layer is predicted to use."""
        if self._current == (layer, is_backward) or not self._max_ahead:
            return
        self._current = (layer, is_backward)
        self._drop_fetched([key for key in self._coming if key[0] != layer])
        index = self._layers.index(layer) + (-1 if is_backward else 1)
        if not 0 <= index < len(self._layers):
            return
        expected = self._received if is_backward else self._received_before
        own = [key for key in self.experts if key[0] == self._layers[index]]
        tokens = [expected.get(key, 0) for key in own]
        frequencies = [self.host.frequency(key) for key in own]
        self._fetch([own[place] for place in predict_experts(tokens, frequencies, (), self._max_ahead)])

    def _fetch(self, keys: Sequence[Key]) -> None:
        for key in keys:
            if key not in self._coming:
                self._coming[key] = self._fetches.submit(self.host.fetch_ahead, key)

    @contextmanager
    def _held(self, key: Key, *, is_counted: bool = True) -> Iterator[HostState]:
        """Hold a state in host memory, and count the wait for it."""
        began = time.perf_counter()
        self._await(key, is_counted=is_counted)
        with self.host.state(key) as held:
            self.stall_seconds += time.perf_counter() - began
            yield held

    def _await(self, key: Key, *, is_counted: bool = True) -> None:
        """Wait for an expert that is being fetched. Others are fetched on demand."""
        coming = self._coming.pop(key, None)
        if is_counted:
            self.predicted += coming is not None
            self.mispredicted += coming is None
        if coming is not None:
            coming.result()

    def _drop_fetched(self, keys: Sequence[Key]) -> None:
        """Unpin experts that were fetched ahead and not used."""
        for key in keys:
            self._coming.pop(key).result()
        self.unused += self.host.drop_ahead(keys)

    # -- taking over

    def _take_over(self, key: Key, module: nn.Module) -> None:
        shapes = _shapes_of(module)
        if shapes != self.steps.shapes or any(each.dtype != torch.float32 for each in module.parameters()):
            raise ValueError("experts with tiers must all have FP32 parameters of the same shapes")
        values = torch.zeros(self.steps.rows, self.steps.elements)
        for name, view in self.steps.parameters(values).items():
            view.copy_(module.get_parameter(name).detach())
        states = [self._optimizer.state.pop(parameter, {}) for parameter in module.parameters()]
        self.steps.adopt(key, values, states)
        self.host.files.write(key, values)
        for parameter in module.parameters():
            # NaN, so that a result that uses a parameter outside its expert shows it.
            nothing = torch.full((1,), torch.nan)
            parameter.data = nothing.expand(parameter.shape)
        self._hooks.append(module.register_state_dict_post_hook(partial(self._add_parameters, key)))
        # An attribute of the instance takes precedence over the method of the class.
        module.forward = partial(self._apply, key)

    def _apply(self, key: Key, rows: Tensor) -> Tensor:
        anchor = torch.zeros((), device=rows.device, requires_grad=torch.is_grad_enabled())
        output: Tensor = _TieredExpert.apply(rows, anchor, self, key)
        return output

    def _add_parameters(
        self, key: Key, _module: nn.Module, state: dict[str, Any], prefix: str, _metadata: Any
    ) -> None:
        parameters, _ = self.snapshot(key)
        for name, value in parameters.items():
            state[prefix + name] = value

    def _add_optimizer_states(self, _optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        kept = dict(state["state"])
        for key, module in self.experts.items():
            _, states = self.snapshot(key)
            for parameter, own in zip(module.parameters(), states, strict=True):
                if own:
                    kept[self._numbers[id(parameter)]] = own
        return {**state, "state": dict(sorted(kept.items()))}

    def _groups_of(self, module: nn.Module) -> list[int]:
        groups = {
            id(parameter): index
            for index, group in enumerate(self._optimizer.param_groups)
            for parameter in group["params"]
        }
        if any(id(parameter) not in groups for parameter in module.parameters()):
            raise ValueError("the optimizer must have the parameters of all experts with tiers")
        return [groups[id(parameter)] for parameter in module.parameters()]


class _TieredExpert(torch.autograd.Function):
    """An expert that is recomputed in the backward pass."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, anchor: Tensor, tiers: TieredExperts, key: Key) -> Tensor:
        ctx.tiers, ctx.key = tiers, key
        device = rows.device.type
        ctx.autocast = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
        ctx.save_for_backward(rows)
        return tiers.forward(key, rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (rows,) = ctx.saved_tensors
        is_enabled, dtype = ctx.autocast
        with torch.autocast(rows.device.type, dtype=dtype, enabled=is_enabled):
            return ctx.tiers.backward(ctx.key, rows, gradients[0]), None, None, None


def _shapes_of(module: nn.Module) -> dict[str, torch.Size]:
    return {name: parameter.shape for name, parameter in module.named_parameters()}


def _parameter_numbers(optimizer: Optimizer) -> dict[int, int]:
    """Return the numbers of parameters in the optimizer's state, by identity."""
    numbers: dict[int, int] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            numbers.setdefault(id(parameter), len(numbers))
    return numbers
