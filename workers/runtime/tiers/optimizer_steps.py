"""An optimizer's step for one expert whose parameters and moments are in a state of a tier.

The steps are those of the user's own optimizer, so they give the same bits as with all states in memory.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from moe.moesys.cache import Key


class ExpertSteps:
    """Steps of a user's optimizer for experts of one shape.

    Attributes:
        shapes: shapes of an expert's parameters, by name.
        moments: names of the optimizer's state tensors with a parameter's shape.
        rows: rows of a state: the parameters, and each moment.
        elements: number of parameters of an expert.
    """

    def __init__(self, optimizer: Optimizer, shapes: Mapping[str, torch.Size]) -> None:
        """Find the optimizer's moments.

        Raises:
            ValueError: its state has tensors of another shape.
        """
        self.shapes = dict(shapes)
        self._optimizer = optimizer
        self.moments = _find_moments(optimizer)
        self.rows = 1 + len(self.moments)
        self.elements = sum(shape.numel() for shape in shapes.values())
        #: By expert, for each parameter: optimizer state other than moments; None before the first step.
        self._scalars: dict[Key, list[dict[str, Any] | None]] = {}

    def parameters(self, values: Tensor) -> dict[str, Tensor]:
        """Return views of the parameters in a state, by name."""
        return self._views(values[0])

    def step(
        self, key: Key, values: Tensor, gradients: Sequence[Tensor | None], groups: Sequence[int]
    ) -> None:
        """Change a state in place.

        Args:
            gradients: one for each parameter, in the order of `shapes`; a parameter with None is not stepped.
            groups: for each parameter, the index of its group in the optimizer, whose current options apply.
        """
        moments = self._moment_views(values)
        scalars = self._scalars.get(key, [None] * len(self.shapes))
        shell = _empty_copy(self._optimizer)
        parameters = [nn.Parameter(view) for view in self.parameters(values).values()]
        members: dict[int, list[nn.Parameter]] = {}
        for index, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
            parameter.grad = gradient
            members.setdefault(groups[index], []).append(parameter)
            before = scalars[index]
            if before is not None:
                kept = {name: views[index] for name, views in moments.items()}
                shell.state[parameter] = {**before, **kept}
        shell.param_groups = [
            {**self._optimizer.param_groups[group], "params": own} for group, own in members.items()
        ]
        type(shell).step(shell)
        self._scalars[key] = [self._without_moments(shell.state[parameter]) for parameter in parameters]
        for index, parameter in enumerate(parameters):
            for name, views in moments.items():
                moment = shell.state[parameter].get(name)
                # At the first step the optimizer creates its own moments.
                if moment is not None and moment.data_ptr() != views[index].data_ptr():
                    views[index].copy_(moment)

    def adopt(self, key: Key, values: Tensor, states: Sequence[Mapping[str, Any]]) -> None:
        """Copy an expert's optimizer states into its state.

        Args:
            states: for each parameter; empty before its first step.
        """
        for name, views in self._moment_views(values).items():
            for view, state in zip(views, states, strict=True):
                if name in state:
                    view.copy_(state[name])
        self._scalars[key] = [self._without_moments(state) for state in states]

    def optimizer_states(self, key: Key, values: Tensor) -> list[dict[str, Any]]:
        """Return each parameter's optimizer state as the optimizer has it; empty before the first step."""
        moments = self._moment_views(values)
        states: list[dict[str, Any]] = []
        for index, kept in enumerate(self._scalars[key]):
            own = {} if kept is None else {name: views[index] for name, views in moments.items()}
            states.append({**copy.deepcopy(kept or {}), **own})
        return states

    def _without_moments(self, state: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the optimizer state without moments; None if there is no state."""
        return {name: value for name, value in state.items() if name not in self.moments} if state else None

    def _moment_views(self, values: Tensor) -> dict[str, list[Tensor]]:
        return {name: list(self._views(values[1 + row]).values()) for row, name in enumerate(self.moments)}

    def _views(self, row: Tensor) -> dict[str, Tensor]:
        views, offset = {}, 0
        for name, shape in self.shapes.items():
            views[name] = row[offset : offset + shape.numel()].view(shape)
            offset += shape.numel()
        return views


def _empty_copy(optimizer: Optimizer) -> Any:
    """Return the same optimizer without parameters, state and hooks."""
    shell = copy.copy(optimizer)
    shell.param_groups = []
    shell.state = defaultdict(dict)
    # A scheduler replaces this attribute of its optimizer to count steps.
    shell.__dict__.pop("step", None)
    for hooks in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        if hooks in shell.__dict__:
            shell.__dict__[hooks] = type(shell.__dict__[hooks])()
    return shell


def _find_moments(optimizer: Optimizer) -> tuple[str, ...]:
    """Return the names of state tensors with a parameter's shape, found by stepping a probe."""
    shape = torch.Size((2, 3))
    found: set[str] = set()
    for group in optimizer.param_groups:
        probe = nn.Parameter(torch.zeros(shape))
        shell = _empty_copy(optimizer)
        options = {name: option for name, option in group.items() if name != "params"}
        shell.param_groups.append({**copy.deepcopy(options), "params": [probe]})
        for _ in range(2):
            probe.grad = torch.full(shape, 1e-6)
            type(shell).step(shell)
        for name, value in shell.state[probe].items():
            if isinstance(value, Tensor) and value.shape == shape:
                found.add(name)
            elif isinstance(value, Tensor) and value.numel() > 1:
                raise ValueError(
                    f"{type(optimizer).__name__} keeps {name} of the shape {tuple(value.shape)}; experts "
                    "with tiers need an optimizer that keeps numbers and tensors of a parameter's shape"
                )
    return tuple(sorted(found))
