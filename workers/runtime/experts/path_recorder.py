"""Records the paths of some tokens through the experts while a model trains, for a later deployment.

Every eighth iteration, each rank takes an equal part of 256 tokens, spread over its part of the batch. All
ranks exchange their paths, so each has the same ones; they are part of the training state and survive a
change of workers. At most `MOST_PATHS` tokens are kept, the newest ones. Paths from before the balance loss
was stable are dropped (Lina 6.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from punctual.moe import moe_layers
from punctual.moe.expert_paths import MOST_PATHS, ExpertPaths, path_type
from workers.runtime.process_group import sum_beside

#: Period of recorded iterations, and tokens of the global batch recorded in each.
EVERY_ITERATIONS, TOKENS = 8, 256
#: The balance loss is stable if its means over two successive windows differ by at most this factor.
WINDOW_ITERATIONS, STABLE_WITHIN = 32, 0.05

_BALANCE = "moe/balance_loss"


class PathRecorder:
    """Records a model's paths. It does nothing in a model with fewer than two mixture-of-experts layers."""

    def __init__(self, module: nn.Module, *, rank: int, world_size: int) -> None:
        self._layers = moe_layers(module)
        self._rank, self._world_size = rank, world_size
        self._tokens = max(1, TOKENS // world_size)
        self._sample: _Sample | None = None
        self._order: list[str] = []
        #: The newest paths: the first `_count` rows.
        experts = tuple(len(layer.experts) for layer in self._layers.values())
        rows = MOST_PATHS if self.is_active else 0
        self._paths = torch.zeros(rows, len(experts), dtype=path_type(experts or (1,)))
        self._count = 0
        self._windows = _BalanceWindows()
        self._kept_in_window = 0

    @property
    def is_active(self) -> bool:
        """Whether the model has paths to record."""
        return len(self._layers) > 1

    def begin_iteration(self, iteration: int) -> None:
        """Watch the forward pass if this iteration is recorded."""
        if not self.is_active or iteration % EVERY_ITERATIONS:
            return
        self._sample = _Sample(self._tokens, iteration // EVERY_ITERATIONS)
        for name, layer in self._layers.items():
            layer.records.on_choices = partial(self._sample.note, name)

    def end_iteration(self, values: Mapping[str, float]) -> None:
        """Keep the recorded paths. All ranks call this after each iteration.

        Args:
            values: metrics of the global batch.
        """
        sample, self._sample = self._sample, None
        if sample is not None:
            for layer in self._layers.values():
                layer.records.on_choices = None
            self._keep(self._gather(sample), sample.order)
        if _BALANCE in values:
            is_stable = self._windows.note(values[_BALANCE])
            if is_stable is False:
                self._forget_all_but(self._kept_in_window)
            if is_stable is not None:
                self._kept_in_window = 0

    def _gather(self, sample: _Sample) -> Tensor:
        """Return the paths of all ranks, in the order of ranks."""
        layers, own = len(self._layers), sample.paths(self._layers)
        # (ranks, 1 + numbers): a rank's number of paths, then the paths.
        gathered = torch.zeros(self._world_size, 1 + self._tokens * layers, dtype=torch.int32)
        gathered[self._rank, 0] = len(own)
        gathered[self._rank, 1 : 1 + own.numel()] = own.flatten()
        work = sum_beside(gathered, None) if self._world_size > 1 else None
        if work is not None:
            work.wait()
        return torch.cat([row[1 : 1 + int(row[0]) * layers].view(-1, layers) for row in gathered])

    def _keep(self, paths: Tensor, order: list[str]) -> None:
        if order != self._order:
            self._order, self._count, self._kept_in_window = order, 0, 0
        self._forget_all_but(len(self._paths) - len(paths))
        self._paths[self._count : self._count + len(paths)] = paths
        self._count += len(paths)
        self._kept_in_window += len(paths)

    def _forget_all_but(self, newest: int) -> None:
        kept = min(self._count, newest)
        if kept < self._count:
            self._paths[:kept] = self._paths[self._count - kept : self._count].clone()
            self._count = kept

    def found(self) -> ExpertPaths | None:
        """Return the kept paths; None if there are none."""
        if not self._count:
            return None
        experts = tuple(len(self._layers[name].experts) for name in self._order)
        return ExpertPaths(tuple(self._order), experts, self._paths[: self._count])

    def state(self) -> dict[str, Any] | None:
        """Return the state for `load_state`; it shares memory with this recorder."""
        return {"layers": self._order, "count": self._count, "paths": self._paths} if self.is_active else None

    def load_state(self, state: Mapping[str, Any] | None) -> None:
        """Continue from a state; None (states of earlier versions) changes nothing."""
        if state is not None and self.is_active:
            kept = state["paths"][: state["count"]][-len(self._paths) :]
            self._order, self._count = list(state["layers"]), len(kept)
            self._paths[: self._count] = kept


class _Sample:
    """Paths of some tokens of one iteration on this rank."""

    def __init__(self, tokens: int, turn: int) -> None:
        self._most = tokens
        self._turn = turn
        #: Names of the layers that ran.
        self.order: list[str] = []
        self._places: set[int] = set()
        self._choices: list[Tensor] = []

    def note(self, name: str, choices: Tensor, is_token: Tensor) -> None:
        """Take evenly spaced places of a layer's first pass; -1 where there is no token."""
        if name in self.order:
            return
        stride = max(1, -(-len(choices) // self._most))
        self.order.append(name)
        self._places.add(len(choices))
        # Vary the places between iterations.
        places = slice(self._turn % stride, None, stride)
        self._choices.append(torch.where(is_token[places], choices[places], -1))

    def paths(self, layers: Mapping[str, Any]) -> Tensor:
        """Return (tokens, layers); empty if a layer did not run, or layers saw unequal numbers of tokens."""
        if len(self.order) < len(layers) or len(self._places) > 1:
            return torch.empty(0, len(layers), dtype=torch.int64)
        paths = torch.stack(self._choices, dim=1).cpu()
        return paths[(paths >= 0).all(dim=1)]


class _BalanceWindows:
    """Whether the balance loss is stable."""

    def __init__(self) -> None:
        self._values: list[float] = []
        self._previous: float | None = None

    def note(self, value: float) -> bool | None:
        """Add the loss of an iteration; return whether it is stable at the end of a window, else None."""
        self._values.append(value)
        if len(self._values) < WINDOW_ITERATIONS:
            return None
        mean, previous = fmean(self._values), self._previous
        self._values, self._previous = [], mean
        return previous is None or abs(mean - previous) <= STABLE_WITHIN * previous
