"""Checks of the values that a function's methods return; a refusal says what to return instead."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.jit import ScriptModule
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset, IterableDataset

from punctual.function import TrainingFunction
from punctual.protocol import limits
from workers.runtime.failures import WorkerFailureError

#: How many metrics `train` may return.
METRIC_SLOTS = 32
#: Metrics of the runtime: the loss, and those of mixture-of-experts layers, tiers and tasks.
RUNTIME_METRICS = 1 + 4 + 4 + 3
GUIDE = "docs/functions.md, Supported and refused"


def refused(problem: str) -> WorkerFailureError:
    """Return the failure of a function that returned something invalid."""
    return WorkerFailureError("function_error", f"{problem} ({GUIDE})")


def check_model(module: Any) -> nn.Module:
    """Return `module`, the result of `init_model`, if it is valid.

    Raises:
        WorkerFailureError: it is not a module, has nothing to train, or has parameters without a shape.
    """
    if not isinstance(module, nn.Module):
        raise refused(f"init_model() must return an nn.Module, not {_kind(module)}")
    if any(isinstance(part, ScriptModule) for part in module.modules()):
        raise refused(
            "init_model() returned a model of TorchScript, which shows none of its parameters: return the "
            "module that was scripted (torch.compile() is supported)"
        )
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if is_lazy(tensor):
            raise refused(
                f"init_model(): {name} has no shape yet, as its module is lazy: run one batch through the "
                "model in init_model()"
            )
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise refused("init_model(): no parameter of the model has requires_grad, so nothing can be trained")
    return module


def check_optimizer(optimizer: Any) -> Optimizer:
    """Return `optimizer`, the result of `init_optimizer`, if it is valid.

    Raises:
        WorkerFailureError: it is not one optimizer, or its `step` needs a closure.
    """
    if not isinstance(optimizer, Optimizer):
        several = (
            ": several optimizers are not supported; give each part of the model a group of one optimizer"
        )
        hint = several if isinstance(optimizer, list | tuple | dict) else ""
        raise refused(f"init_optimizer() must return one torch.optim.Optimizer, not {_kind(optimizer)}{hint}")
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise refused(
            f"init_optimizer(): {type(optimizer).__name__} evaluates the loss several times for each step, "
            "which is not supported: use an optimizer whose step() needs no closure"
        )
    return optimizer


def check_scheduler(scheduler: Any, optimizer: Optimizer) -> Any:
    """Return `scheduler`, the result of `init_scheduler(optimizer)`, if it is valid.

    Raises:
        WorkerFailureError: it is not a scheduler, or belongs to another optimizer.
    """
    methods = ("step", "state_dict", "load_state_dict")
    if isinstance(scheduler, LRScheduler) and scheduler.optimizer is not optimizer:
        raise refused(
            "init_scheduler() returned a scheduler of another optimizer, so the learning rate would never "
            "change: build it for the optimizer that init_scheduler(optimizer) is given"
        )
    if scheduler is None or all(callable(getattr(scheduler, name, None)) for name in methods):
        return scheduler
    hint = ""
    if isinstance(scheduler, Mapping):
        hint = ": return the scheduler alone; it is stepped once per iteration"
    if isinstance(scheduler, list | tuple):
        hint = ": torch.optim.lr_scheduler.SequentialLR and ChainedScheduler make one of several"
    raise refused(f"init_scheduler() must return one scheduler or None, not {_kind(scheduler)}{hint}")


def check_dataset(dataset: Any) -> Any:
    """Return `dataset`, the result of `init_dataset`, if it is valid.

    Raises:
        WorkerFailureError: it is not a map-style data set.
    """
    hint = ""
    if isinstance(dataset, DataLoader):
        hint = ": return the data set that it loads; the runtime loads batches itself"
    elif isinstance(dataset, IterableDataset):
        hint = ", an IterableDataset: each worker takes samples by their index"
    elif _has_own(dataset, "__getitem__") and _has_own(dataset, "__len__"):
        return dataset
    raise refused(
        "init_dataset() must return a map-style data set, with __len__ and __getitem__, "
        f"not {_kind(dataset)}{hint}"
    )


def own_state(function: TrainingFunction) -> dict[str, Any]:
    """Return the result of the function's `state_dict`.

    Raises:
        WorkerFailureError: it is not a dict.
    """
    state = function.state_dict()
    if not isinstance(state, Mapping):
        raise refused(f"state_dict() must return a dict, not {_kind(state)}")
    return dict(state)


def loss_and_metrics(returned: Any) -> tuple[Tensor, dict[str, float]]:
    """Return loss (a scalar) and metrics from the result of `train`.

    Raises:
        WorkerFailureError: the loss is invalid, or a metric is not a number or has an invalid name.
    """
    loss, metrics = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, {})
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise refused(f"train() must return its loss, a tensor of one number, not {_kind(loss)}")
    if loss.is_complex():
        raise refused("train() returned a complex loss: return a real number of it, such as loss.abs()")
    if not loss.requires_grad:
        raise refused(
            "train() returned a loss that depends on no parameter: return it without .item() or .detach(), "
            "and compute it outside of torch.no_grad()"
        )
    numbers = numbers_of(metrics, "train()")
    numbers.pop("loss", None)
    check_metric_names(numbers, "train()")
    return loss.reshape(()), numbers


def check_metric_names(metrics: Mapping[Any, Any], where: str) -> None:
    """Raise WorkerFailureError if a metric's name is invalid or there are too many metrics.

    Args:
        where: the method that returned them.
    """
    most = limits.METRICS_OF_AN_ITERATION - METRIC_SLOTS - RUNTIME_METRICS
    if len(metrics) > most:
        raise WorkerFailureError(
            "function_error",
            f"{where} returned {len(metrics)} metrics, at most {most} are kept",
        )
    for name in metrics:
        problem = limits.metric_name_problem(name)
        if problem is not None:
            raise WorkerFailureError(
                "function_error", f"{where} returned a metric that cannot be kept: {problem}"
            )


def numbers_of(metrics: Any, where: str) -> dict[str, float]:
    """Return the metrics as numbers.

    Args:
        where: the method that returned them.

    Raises:
        WorkerFailureError: they are not a dict of numbers.
    """
    if not isinstance(metrics, Mapping):
        raise refused(f"{where} must return its metrics as a dict of numbers, not {_kind(metrics)}")
    return {name: _number(name, value, where) for name, value in metrics.items()}


def _number(name: Any, value: Any, where: str) -> float:
    try:
        return float(value.detach().item() if isinstance(value, Tensor) else value)
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        raise refused(
            f"{where} returned the metric {name!r} as {_kind(value)}: a metric is one number"
        ) from error


def _has_own(dataset: Any, method: str) -> bool:
    """Return whether the data set implements the method; PyTorch's base class only raises."""
    found = getattr(type(dataset), method, None)
    return found is not None and found is not getattr(Dataset, method, None)


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return "None" if value is None else type(value).__name__
