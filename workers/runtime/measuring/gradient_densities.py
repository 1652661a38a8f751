"""Densities of gradients, on each rank and in sums of several ranks: the input of Zen's planner."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from communication.zen.measuring import measured_profile
from communication.zen.profile import SparsityProfile
from punctual.protocol import limits
from workers.runtime.synchronisation.sparse import tables_of_rows

#: A gradient is reported if less than this share of its rows is touched.
SPARSE_DENSITY = 0.5
#: Smaller gradients gain nothing.
LEAST_ROWS = 64
#: Larger gradients are too expensive to check.
MOST_ROWS = 1 << 26


class GradientDensities:
    """Records which rows of gradients are not zero, in iterations in which it watches.

    Candidates are embedding tables with sparse gradients, and other parameters with many rows.
    """

    def __init__(self, module: nn.Module, without: Collection[str] = ()) -> None:
        """Begin.

        Args:
            without: names of parameters without a communication plan.
        """
        self.watching = False
        tables = tables_of_rows(module)
        self._candidates: dict[str, nn.Parameter] = {
            name: each
            for name, each in module.named_parameters()
            if name not in without
            and each.requires_grad
            and each.numel()
            and (each.dim() > 1 and LEAST_ROWS <= each.shape[0] <= MOST_ROWS or id(each) in tables)
        }
        self._tables = {name for name, each in self._candidates.items() if id(each) in tables}
        #: For each candidate and iteration, a flag for each row.
        self._touched: dict[str, list[Tensor]] = {name: [] for name in self._candidates}
        self._iterations = 0
        self._hooks = [
            each.register_hook(partial(self._gradient_ready, name)) for name, each in self._candidates.items()
        ]

    def close(self) -> None:
        """Remove the hooks."""
        self.watching = False
        for hook in self._hooks:
            hook.remove()

    def iteration_done(self) -> None:
        """Note that a watched iteration is over. A gradient that was not computed touched no row."""
        self._iterations += 1
        for name, each in self._candidates.items():
            if len(self._touched[name]) < self._iterations:
                self._touched[name].append(torch.zeros(each.shape[0], dtype=torch.bool))

    def _gradient_ready(self, name: str, gradient: Tensor) -> None:
        if not self.watching:
            return
        touched = torch.zeros(gradient.shape[0], dtype=torch.bool, device=gradient.device)
        if gradient.is_sparse:
            values = gradient._values()
            kept = (values.flatten(1) != 0).any(1)
            touched[gradient._indices()[0][kept]] = True
        else:
            touched = (gradient.flatten(1) != 0).any(1)
        self._touched[name].append(touched.cpu())

    def profiles(self, group: dist.ProcessGroup | None) -> list[SparsityProfile] | None:
        """Return the profiles of sparse gradients over all ranks of a group. All ranks call this together,
        after the same number of watched iterations.

        Tables with sparse gradients are reported at any density, also if no row was touched: a plan of the
        other gradients must not include them. None if they cannot all be reported.
        """
        most = limits.SPARSE_TENSORS_OF_A_MODEL
        if len(self._tables) > most or self._tables and not self._iterations:
            return None
        if not self._candidates or not self._iterations:
            return []
        own = torch.tensor(
            [float(torch.stack(each).float().mean()) for each in self._touched.values()],
            dtype=torch.float64,
        )
        if dist.get_world_size(group) > 1:
            dist.all_reduce(own, group=group)
        mean = dict(zip(self._candidates, (own / dist.get_world_size(group)).tolist(), strict=True))
        # All zeros: nothing was computed.
        sparse = [name for name, each in mean.items() if name in self._tables or 0.0 < each < SPARSE_DENSITY]
        sparse.sort(key=lambda name: (name not in self._tables, -self._candidates[name].numel()))
        sparse = sorted(sparse[:most])
        return [self._profile(name, group) for name in sparse]

    def _profile(self, name: str, group: dist.ProcessGroup | None) -> SparsityProfile:
        each = self._candidates[name]
        own = torch.from_numpy(np.packbits(torch.stack(self._touched[name]).numpy(), axis=1))
        everybody = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
        dist.all_gather(everybody, own, group=group)
        flags = [np.unpackbits(told.numpy(), axis=1, count=each.shape[0]) for told in everybody]
        iterations = [
            [np.flatnonzero(rank[number]) + 1 for rank in flags] for number in range(self._iterations)
        ]
        measured = measured_profile(name, each.numel(), math.prod(each.shape[1:]), iterations)
        return replace(measured, rows=name in self._tables)


def sparse_fields(profiles: Sequence[SparsityProfile]) -> list[dict[str, object]]:
    """Return the profiles as in a record."""
    return [
        {
            "name": each.tensor,
            "width": each.width,
            "density": each.densification.density,
            "beta": each.densification.beta,
            "sums": [{"workers": n, "density": d} for n, d in each.densification.measured],
            "skew": each.skew.sigma,
            "rows": each.rows,
        }
        for each in profiles
    ]
