"""Experts that move between ranks while a generation trains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from torch import Tensor

from workers.runtime.failures import blaming_the_function
from workers.runtime.function.parts import TrainingParts
from workers.runtime.function.returned import refused
from workers.runtime.state.delivery import Held, redistribute
from workers.runtime.state.experts import free
from workers.runtime.state.layout import Path


def move_experts(parts: TrainingParts, hosts: Mapping[str, tuple[int, ...]]) -> None:
    """Move experts, with their optimizer states, to their new hosts; free them on the others.

    All ranks call this together, between two iterations.

    Args:
        hosts: ranks by the name of each parameter of spread experts; the first one stores it.
    """
    before = parts.experts
    states = parts.expert_states

    def wanted_by(path: Path) -> tuple[int, ...]:
        name = states.name_at(path)
        return tuple(rank for rank in hosts[name] if rank not in before.hosts[name])

    state = {"model": parts.module.state_dict(), "optimizer": parts.optimizer.state_dict()}
    _, owned = states.apart(state)
    leaving = Held(
        {path: tensor.cpu() for path, tensor in owned.tensors.items() if wanted_by(path)},
        {path: rest for path, rest in owned.rests.items() if wanted_by(path)},
    )
    arrived = redistribute(leaving, wanted_by, before.group)
    _put(parts, arrived)
    if arrived.rests:
        with blaming_the_function("load_state_dict() of the optimizer"):
            parts.optimizer.load_state_dict(states.together(state, arrived)["optimizer"])
    before.hosts = dict(hosts)
    free(before, parts.module, parts.optimizer, parts.device)


def send_parameters(
    parts: TrainingParts, sent: Iterable[str], receivers: Callable[[str], Sequence[int]]
) -> None:
    """Send parameters of experts to other ranks. All ranks call this together.

    Args:
        sent: names of the parameters that this rank sends; each is sent by one rank.
        receivers: returns the ranks that get a parameter, without the sender; the same on every rank.

    Raises:
        WorkerFailureError: the ranks have built different models.
    """
    held = Held({("model", name): _value(parts, name).cpu() for name in sent if receivers(name)})
    _put(parts, redistribute(held, lambda path: receivers(path[1]), parts.experts.group))


def _value(parts: TrainingParts, name: str) -> Tensor:
    kept = parts.kept_elsewhere(name)
    value: Tensor = parts.module.get_parameter(name).detach() if kept is None else kept
    return value


def _put(parts: TrainingParts, arrived: Held) -> None:
    for path, tensor in arrived.tensors.items():
        if path[0] != "model":
            continue
        parameter = parts.module.get_parameter(path[1])
        if parameter.shape != tensor.shape or parameter.dtype != tensor.dtype:
            raise refused(
                f"init_model() must build the same model on all workers; {path[1]} has the shape "
                f"{tuple(parameter.shape)} and the type {parameter.dtype} on one worker, "
                f"{tuple(tensor.shape)} and {tensor.dtype} on another"
            )
        parameter.data = tensor.to(parameter.device)
