"""Which parameters are trained, and which of their properties may change while a job trains.

Synchronisers take the parameters that are trained when a generation begins, and a state is loaded into
parameters of the same names and shapes. `train()` may freeze and unfreeze parameters at any iteration. Any
other change of parameters, or of the optimizer's groups, is refused at the next check.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from operator import is_
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from workers.runtime.failures import WorkerFailureError
from workers.runtime.function.parts import TrainingParts
from workers.runtime.synchronisation.sparse import SparseSynchroniser, tables_of_rows

#: Largest number of gradient elements in one all-reduce.
BUCKET_ELEMENTS = 1 << 22
_DOCS = 'see "What may change while it trains" in docs/functions.md'


class TrainedParameters:
    """The parameters of a model at the start of a generation, and their changes since.

    In each iteration, `check` is called before the backward pass, and `synchronise` if `late` parameters
    have no synchroniser. A frozen parameter has no gradient and counts as unused.

    Attributes:
        fingerprint: hash of the names of the parameters trained now; 40 bits, so sums over ranks are exact.
        late: parameters trained now that were frozen when the generation began.
    """

    def __init__(self, parts: TrainingParts, group: dist.ProcessGroup | None, world_size: int) -> None:
        """Record the parameters; all that are trained now have a synchroniser.

        Raises:
            WorkerFailureError: an optimizer steps a parameter that is not in the model.
        """
        self._parts, self._group, self._world_size = parts, group, world_size
        self.fingerprint = 0.0
        self.late: list[nn.Parameter] = []
        self._structure = _Structure(parts.module)
        self._tensors = _named_tensors(parts.module)
        self._named = {name: each for name, each in self._tensors.items() if isinstance(each, nn.Parameter)}
        self._shapes = [(each.shape, each.dtype) for each in self._named.values()]
        self._buffers = list(_buffers_of_fixed_shape(parts.module))
        self._began_trained = [each.requires_grad for each in self._named.values()]
        self._trained: list[bool] = []
        self._groups = _groups_of(parts.optimizer)
        self._optimizers = _own_optimizers(parts)
        self._check_optimizers()
        self._note_trained()

    def synchronise(self) -> None:
        """Average the gradients of `late` parameters over the ranks; these are the same on all ranks."""
        tables = tables_of_rows(self._parts.module)
        rows = {str(place): each for place, each in enumerate(self.late) if id(each) in tables}
        if rows:
            synchroniser = SparseSynchroniser({})
            synchroniser.wrap(self._parts, self._group, rows)
            synchroniser.after_backward()
        for bucket in _buckets(each for each in self.late if id(each) not in tables):
            _average(bucket, self._group, self._world_size)

    # -- changes

    def check(self) -> None:
        """Check the changes that `train()` made to the model and the optimizer.

        Raises:
            WorkerFailureError: a change is not allowed.
        """
        module = self._parts.module
        if not self._structure.is_unchanged():
            self._check_names()
            self._structure = _Structure(module)
            self._buffers = list(_buffers_of_fixed_shape(module))
        for (name, parameter), (shape, dtype) in zip(self._named.items(), self._shapes, strict=True):
            if parameter.shape != shape or parameter.dtype != dtype:
                raise _refused(
                    f"the parameter {name!r} is of shape {tuple(parameter.shape)} and {parameter.dtype} now, "
                    f"and was of {tuple(shape)} and {dtype}: build the model as large as it becomes in "
                    "init_model(), and freeze or mask what is not used yet"
                )
        for place, key, name, shape in self._buffers:
            if (now := _shape(place.get(key))) != shape:
                raise _refused(
                    f"the buffer {name!r} is of shape {now} now, and was of {shape}: register it in "
                    "init_model() as large as it becomes, or with persistent=False"
                )
        if not _are_same(_groups_of(self._parts.optimizer), self._groups):
            raise _refused(
                "the optimizer's parameter groups are others now: make all of them in init_optimizer(), with "
                "lr=0 or frozen (requires_grad=False) until they are needed"
            )
        own = _own_optimizers(self._parts)
        if len(own) != len(self._optimizers) or not all(map(is_, own, self._optimizers)):
            raise _refused("the function has another optimizer now: one is stepped, that of init_optimizer()")
        if self._trained != [each.requires_grad for each in self._named.values()]:
            self._note_trained()

    def _check_names(self) -> None:
        before, now = self._tensors, _named_tensors(self._parts.module)
        for name, tensor in before.items():
            if name not in now:
                raise _refused(
                    f"the {_kind(tensor)} {name!r} is gone from the model: prune, split or replace layers in "
                    "init_model(), or multiply weights by a mask instead of pruning"
                )
            if isinstance(tensor, nn.Parameter) and now[name] is not tensor:
                raise _refused(
                    f"the parameter {name!r} is another one now, which is not synchronised: write values "
                    "into the one that was there (parameter.data.copy_(...)); replace or tie layers in "
                    "init_model()"
                )
        for name, tensor in now.items():
            if name not in before:
                raise _refused(
                    f"the {_kind(tensor)} {name!r} is new in the model: build it in init_model(), frozen "
                    "(requires_grad=False) until it is needed"
                )

    def _check_optimizers(self) -> None:
        known = {id(each) for each in self._named.values()}
        for number, group in enumerate(self._groups):
            for parameter in group:
                if id(parameter) not in known:
                    raise WorkerFailureError(
                        "function_error",
                        f"init_optimizer(): group {number} has a parameter of shape "
                        f"{tuple(parameter.shape)} that the model does not have: what is trained is a part "
                        "of what init_model() returns",
                    )
        stepped = {id(parameter) for group in self._groups for parameter in group}
        for optimizer in self._optimizers:
            if any(id(parameter) not in stepped for group in _groups_of(optimizer) for parameter in group):
                raise WorkerFailureError(
                    "function_error",
                    "init_optimizer(): the function has a second optimizer, for other parameters: one is "
                    "stepped, that which is returned (give it a parameter group for each part of the model)",
                )

    def _note_trained(self) -> None:
        self._trained = [each.requires_grad for each in self._named.values()]
        began = list(zip(self._named.items(), self._began_trained, strict=True))
        self.late = _once(each for (_, each), trained in began if each.requires_grad and not trained)
        content = "\0".join(name for name, each in self._named.items() if each.requires_grad)
        self.fingerprint = float(int.from_bytes(hashlib.sha256(content.encode()).digest()[:5], "little"))


class _Structure:
    """A snapshot of a model's modules, parameters and buffers that is quick to compare."""

    def __init__(self, module: nn.Module) -> None:
        self._places = [
            (place, tuple(place), tuple(place.values()) if of_objects else None)
            for part in module.modules()
            for place, of_objects in _places_of(part)
        ]

    def is_unchanged(self) -> bool:
        """Return whether nothing was added, removed, renamed or replaced. Buffers may be replaced."""
        for place, names, values in self._places:
            if len(place) != len(names):
                return False
            if names and (
                tuple(place) != names or values is not None and not all(map(is_, place.values(), values))
            ):
                return False
        return True


def _places_of(part: nn.Module) -> tuple[tuple[dict[str, Any], bool], ...]:
    return (part._modules, True), (part._parameters, True), (part._buffers, False)


def _named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and persistent buffers of a model, by all their names."""
    named = dict(module.named_parameters(remove_duplicate=False))
    return {**named, **dict(_kept_buffers(module))}


def _kept_buffers(module: nn.Module) -> Iterable[tuple[str, Tensor]]:
    """Yield the persistent buffers, which a state contains."""
    for prefix, part in module.named_modules(remove_duplicate=False):
        for name, buffer in part._buffers.items():
            if buffer is not None and name not in part._non_persistent_buffers_set:
                yield (f"{prefix}.{name}" if prefix else name), buffer


def _buffers_of_fixed_shape(
    module: nn.Module,
) -> Iterable[tuple[dict[str, Tensor | None], str, str, tuple[int, ...] | None]]:
    """Yield the container of each persistent buffer, its key there, its full name and its shape. Modules that
    override loading, such as observers, may accept other shapes and are left out."""
    for prefix, part in module.named_modules():
        if type(part)._load_from_state_dict is nn.Module._load_from_state_dict:
            for key in part._buffers.keys() - part._non_persistent_buffers_set:
                name = f"{prefix}.{key}" if prefix else key
                yield part._buffers, key, name, _shape(part._buffers[key])


def _shape(tensor: Tensor | None) -> tuple[int, ...] | None:
    return None if tensor is None or is_lazy(tensor) else tuple(tensor.shape)


def _kind(tensor: Tensor) -> str:
    return "parameter" if isinstance(tensor, nn.Parameter) else "buffer"


def _groups_of(optimizer: Optimizer) -> list[list[Tensor]]:
    return [list(group["params"]) for group in optimizer.param_groups]


def _are_same(groups: Sequence[Sequence[Tensor]], others: Sequence[Sequence[Tensor]]) -> bool:
    return len(groups) == len(others) and all(
        len(group) == len(other) and all(map(is_, group, other))
        for group, other in zip(groups, others, strict=True)
    )


def _own_optimizers(parts: TrainingParts) -> list[Optimizer]:
    """Return the optimizers that the function keeps besides the one that is stepped."""
    kept = vars(parts.function).values()
    return [each for each in kept if isinstance(each, Optimizer) and each is not parts.optimizer]


def _once(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    return list({id(each): each for each in parameters}.values())


def _buckets(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Group consecutive parameters of one device and type into buckets."""
    buckets: list[list[nn.Parameter]] = []
    size = 0
    for each in parameters:
        like = buckets and (buckets[-1][0].device, buckets[-1][0].dtype) == (each.device, each.dtype)
        if not like or size + each.numel() > BUCKET_ELEMENTS:
            buckets.append([])
            size = 0
        buckets[-1].append(each)
        size += each.numel()
    return buckets


def _average(bucket: Sequence[nn.Parameter], group: dist.ProcessGroup | None, world_size: int) -> None:
    """Replace each gradient by its mean over the ranks; one that no rank computed stays None."""
    if world_size == 1:
        return
    computed = torch.tensor([each.grad is not None for each in bucket]).to(bucket[0])
    gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in bucket]
    flat = torch.cat([computed, *(each.reshape(-1) for each in gradients)])
    dist.all_reduce(flat, group=group)
    anywhere = flat[: len(bucket)].tolist()
    means = (flat[len(bucket) :] / world_size).split([each.numel() for each in bucket])
    for parameter, count, mean in zip(bucket, anywhere, means, strict=True):
        if count:
            parameter.grad = mean.view(parameter.shape).clone()


def _refused(problem: str) -> WorkerFailureError:
    return WorkerFailureError("function_error", f"train(): {problem} ({_DOCS})")
