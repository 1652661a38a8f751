"""Refuses steps of a training loop that were left in `train()` and would run twice or have no effect."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from punctual.function import TrainingFunction
from workers.runtime.function.function_loading import overrides
from workers.runtime.function.parts import TrainingParts
from workers.runtime.function.returned import refused

_CLIPPING = ("clip_grad_norm_", "clip_grad_value_")


class LeftoverSteps:
    """Finds steps of the optimizer, of schedulers, of clipping and of loss scaling in `train()`."""

    def __init__(self, parts: TrainingParts) -> None:
        """Check the names that `train` uses.

        Raises:
            WorkerFailureError: it clips gradients, which are computed only after it returns.
        """
        self._parts = parts
        self._inside = False
        parts.optimizer.register_step_pre_hook(self._optimizer_steps)
        for name in _CLIPPING:
            if name in _names_in(type(parts.function).train):
                raise refused(
                    f"train() calls {name}(), and gradients are computed after it has returned: leave it "
                    "out, and submit the job with the hyperparameter gradient_clip_norm"
                )

    @contextmanager
    def refused(self) -> Iterator[None]:
        """Check a call of `train()` within this context.

        Raises:
            WorkerFailureError: it stepped the optimizer, the runtime's scheduler, or a scheduler that is in
                no state, or it scaled the loss.
        """
        parts = self._parts
        before = [(each, _position(each)) for each in (parts.scheduler, *_own(parts.function, LRScheduler))]
        self._inside = True
        try:
            yield
        finally:
            self._inside = False
        for scheduler, position in before:
            if _position(scheduler) == position:
                continue
            if scheduler is parts.scheduler:
                raise refused(
                    "train() must not step the scheduler that init_scheduler() returned: the runtime does, "
                    "once per iteration"
                )
            if not overrides(parts.function, "state_dict"):
                raise refused(
                    "train() steps a scheduler that no state has, so it would begin anew when the job moves: "
                    "return it from init_scheduler(), which has it stepped once per iteration"
                )
        # `_scale` is set when the first loss is scaled.
        if any(scaler._scale is not None for scaler in _own(parts.function, GradScaler)):
            raise refused(
                "train() scales its loss with a GradScaler, and nothing would scale the gradients back: "
                "return the loss as it is, under torch.autocast(..., dtype=torch.bfloat16)"
            )

    def _optimizer_steps(self, optimizer: Optimizer, _arguments: Any, _keywords: Any) -> None:
        if self._inside and any(
            each.grad is not None for group in optimizer.param_groups for each in group["params"]
        ):
            raise refused(
                "train() must not call backward() and optimizer.step(): return the loss, and the runtime "
                "does the rest"
            )


def _own(function: TrainingFunction, kind: type[Any]) -> list[Any]:
    """Return the function's attributes of a type."""
    return [each for each in vars(function).values() if isinstance(each, kind)]


def _position(scheduler: Any) -> Any:
    return getattr(scheduler, "last_epoch", None)


def _names_in(function: Any) -> set[str]:
    """Return the names that a Python function uses, nested functions included."""
    names: set[str] = set()
    waiting = [getattr(function, "__code__", None)]
    while waiting:
        code = waiting.pop()
        if isinstance(code, CodeType):
            names.update(code.co_names)
            waiting.extend(code.co_consts)
    return names
