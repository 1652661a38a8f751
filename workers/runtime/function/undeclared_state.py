"""Finds values that `train()` keeps on the function outside any state: they are lost when the job moves."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from workers.runtime.function.function_loading import overrides
from workers.runtime.function.parts import TrainingParts
from workers.runtime.function.returned import refused

_log = logging.getLogger(__name__)

#: An attribute that changes in each of this many first iterations counts as state.
_LOOKS = 3


class UndeclaredState:
    """Checks the attributes of a function without `state_dict` after its first iterations.

    Changing weights of another model, such as an average or a target network, are refused. Counters and
    tensors changed in place may not affect results, so they are only logged. Tensors replaced in each
    iteration are ignored, as they may belong to that iteration alone.
    """

    def __init__(self, parts: TrainingParts, *, tells: bool) -> None:
        """Check the function's methods.

        Args:
            tells: whether this rank writes to the log.

        Raises:
            WorkerFailureError: the function has `state_dict` without `load_state_dict`.
        """
        declares = overrides(parts.function, "state_dict")
        if declares and not overrides(parts.function, "load_state_dict"):
            raise refused(
                "state_dict() returns a state that nothing takes back: write load_state_dict(state) too, "
                "which is called whenever the job moves"
            )
        self._function = parts.function
        self._of_the_model = {id(each) for each in (*parts.module.parameters(), *parts.module.buffers())}
        self._tells = tells
        self._looks = 0 if declares else _LOOKS
        self._seen: list[dict[str, Any]] = []

    def iteration_done(self) -> None:
        """Compare the attributes after one of the first iterations.

        Raises:
            WorkerFailureError: `train` changes weights that are in no state.
        """
        if len(self._seen) == self._looks:
            return
        self._seen.append(dict(self._marks()))
        if len(self._seen) < self._looks:
            return
        for name, (kind, *_) in self._seen[-1].items():
            marks = [seen[name] for seen in self._seen if name in seen]
            values = [value for *_, value in marks]
            if len(set(values)) < self._looks or len({identity for _, identity, _ in marks}) > 1:
                continue
            if kind is nn.Module:
                raise refused(
                    f"train() changes the weights of self.{name}, which no state has, so they would begin "
                    "anew when the job moves: make them a part of the model in init_model(), frozen "
                    "(requires_grad=False), or write state_dict() and load_state_dict()"
                )
            counts = kind is Tensor or values[2] - values[1] == values[1] - values[0]
            if counts and self._tells:
                _log.warning(
                    "train() changes self.%s, which begins anew whenever the job moves: write state_dict() "
                    "and load_state_dict(), or take punctual.current_iteration(), if a result depends on it",
                    name,
                )
        self._seen = [{}] * self._looks

    def _marks(self) -> Iterable[tuple[str, tuple[type[Any], int, Any]]]:
        """Yield each attribute's name with its kind, the object's id, and a value that shows changes."""
        for name, value in vars(self._function).items():
            if type(value) is int:
                yield name, (int, 0, value)
            elif isinstance(value, Tensor | nn.Module):
                tensors = [value] if isinstance(value, Tensor) else list(value.parameters())
                own = [
                    each.detach()
                    for each in tensors
                    if _has_a_sum(each) and id(each) not in self._of_the_model
                ]
                kind = Tensor if isinstance(value, Tensor) else nn.Module
                if own:
                    yield (
                        name,
                        (kind, id(value), tuple(str(each.sum(dtype=torch.float64).item()) for each in own)),
                    )


def _has_a_sum(tensor: Tensor) -> bool:
    known = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided
    return known and not tensor.is_complex() and not tensor.is_quantized and not tensor.is_meta
