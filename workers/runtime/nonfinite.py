"""Losses and weights that are NaN or infinite: which events report them, and when they end a job.

Every rank has the loss of the whole batch, so all ranks decide alike without communication. A run of such
losses is part of the training state, so the count continues in the next generation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn

from punctual.protocol.hyperparameters import NONFINITE_ITERATIONS_IN_A_ROW
from punctual.protocol.limits import NONFINITE, TENSORS_NAMED
from workers.runtime.failures import WorkerFailureError
from workers.runtime.iterating.training_state import Progress

#: Runs reported per job. Training in mixed precision may skip single steps very often.
TOLD_RUNS = 5


class NonfiniteWatch:
    """Checks every loss of one rank's training."""

    def __init__(self, tell: Callable[[dict[str, Any]], None] | None, *, stops: bool) -> None:
        """Begin.

        Args:
            tell: takes the fields of an event; None: this rank sends no events.
            stops: whether a long run ends the job.
        """
        self._tell = tell
        self._stops = stops
        self._doubted_at = -1
        self._told_weights = False

    def iteration_done(self, progress: Progress, loss: float) -> None:
        """Check the loss of the iteration that `progress` counted last.

        Raises:
            WorkerFailureError: `nonfinite`, after too many in a row.
        """
        if math.isfinite(loss):
            if progress.nonfinite_since is not None:
                self._say(progress, what="loss_ended", since=progress.nonfinite_since)
                progress.nonfinite_since = None
            return
        if progress.nonfinite_since is None:
            progress.nonfinite_since = progress.iteration
            progress.nonfinite_runs += 1
            self._say(progress, what="loss_began", since=progress.iteration)
        in_a_row = progress.iteration - progress.nonfinite_since + 1
        if self._stops and in_a_row >= NONFINITE_ITERATIONS_IN_A_ROW:
            raise WorkerFailureError(
                NONFINITE,
                f"the loss was NaN or infinite in {in_a_row} iterations in a row, from iteration "
                f'{progress.nonfinite_since} on; hyperparameter nonfinite="continue" would let it train on',
            )

    def holds_back(self, progress: Progress, module: nn.Module, elsewhere: Collection[str] = ()) -> bool:
        """Return whether the current state must not replace the last durable one, as it may be worthless and
        the job may end because of it.

        Weights that have just become non-finite show in the next loss; if they do not, no output depends on
        them.

        Args:
            elsewhere: names of parameters that this rank does not have.
        """
        if not self._stops:
            return False
        if progress.nonfinite_since is not None:
            return True
        bad = find_nonfinite(module, elsewhere)
        if not bad:
            return False
        if not self._told_weights:
            self._told_weights = True
            self._say_weights("weights", progress, bad, module)
        doubted_before, self._doubted_at = self._doubted_at, progress.iteration
        return doubted_before != progress.iteration - 1

    def training_done(self, progress: Progress, module: nn.Module) -> list[str]:
        """Report and return the names of final weight tensors that are not finite."""
        bad = find_nonfinite(module)
        if bad:
            self._say_weights("final_weights", progress, bad, module)
        return bad

    def _say_weights(self, what: str, progress: Progress, bad: list[str], module: nn.Module) -> None:
        if self._tell is not None:
            of = len(module.state_dict())
            names = bad[:TENSORS_NAMED]
            self._tell(
                {"what": what, "iteration": progress.iteration, "tensors": len(bad), "of": of, "names": names}
            )

    def _say(self, progress: Progress, **fields: Any) -> None:
        if self._tell is not None and progress.nonfinite_runs <= TOLD_RUNS:
            self._tell({"iteration": progress.iteration, **fields})


def find_nonfinite(module: nn.Module, elsewhere: Collection[str] = ()) -> list[str]:
    """Return names of parameters with a NaN or an infinity, and of other state tensors with a NaN: masks are
    often infinite on purpose."""
    trained = {name for name, value in module.named_parameters(remove_duplicate=False) if value.requires_grad}
    state = {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}
    suspects = {
        name: _is_bad(value, infinite=name in trained)
        for name, value in state.items()
        if name not in elsewhere
        if value.is_floating_point() or value.is_complex()
    }
    # Wait for the device once, not once per tensor.
    by_device: dict[torch.device, list[str]] = {}
    for name, flag in suspects.items():
        by_device.setdefault(flag.device, []).append(name)
    bad: set[str] = set()
    for names in by_device.values():
        flags = torch.stack([suspects[name] for name in names]).tolist()
        bad |= {name for name, flag in zip(names, flags, strict=True) if flag}
    return [name for name in suspects if name in bad]


def _is_bad(value: Tensor, *, infinite: bool) -> Tensor:
    """Return a one-element boolean tensor: whether `value` holds a NaN, or an infinity if these count too."""
    values = value.detach()
    if values.layout != torch.strided:
        values = values.coalesce().values() if values.layout == torch.sparse_coo else values.values()
    if values.is_floating_point() and values.itemsize == 1:
        values = values.float()  # eight-bit formats lack comparisons
    return (~values.isfinite()).any() if infinite else values.isnan().any()
