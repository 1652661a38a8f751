"""Experts are packed only within the memory that the plan permits."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from moe.lina.packing import ExpertPacking, Reason, StepTimes
from workers.runtime.lina.packing import ExpertMemory, RuntimePacking
from workers.runtime.state.experts import ExpertHosts, free

WIDTH = 8
#: Weights, gradient, and two moments of the optimizer, which also keeps a step count of four bytes.
EXPERT_BYTES = 4 * 4 * WIDTH * WIDTH + 4


def memory(limit_bytes: float | None) -> ExpertMemory:
    """Return the memory of a rank that has two of four experts and has trained them."""
    layer = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
    optimizer = torch.optim.AdamW(layer.parameters())
    free(ExpertHosts({"2.weight": (1,), "3.weight": (1,)}), layer, optimizer, torch.device("cpu"))
    for expert in list(layer)[:2]:
        expert.weight.grad = torch.ones(WIDTH, WIDTH)
    optimizer.step()
    return ExpertMemory([layer], optimizer, limit_bytes)


@pytest.mark.parametrize(
    ("limit_bytes", "hosted", "fits"),
    [
        (4 * EXPERT_BYTES, 4, True),
        (4 * EXPERT_BYTES - 1, 4, False),
        (2 * EXPERT_BYTES, 2, True),
        (None, 99, True),
    ],
)
def test_an_expert_takes_weights_gradients_and_moments(
    limit_bytes: float | None, hosted: int, fits: bool
) -> None:
    assert memory(limit_bytes).has_room_for([hosted]) == fits


@pytest.mark.parametrize(("limit_bytes", "factor"), [(4 * EXPERT_BYTES - 1, 2), (2 * EXPERT_BYTES - 1, 1)])
def test_packing_is_limited_by_memory(limit_bytes: int, factor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.runtime.lina.packing.dist.get_rank", lambda _group: 0)
    monkeypatch.setattr(RuntimePacking, "_sum", lambda _packing, numbers: torch.tensor(numbers))
    packing = RuntimePacking([4], 4, 1, None, memory(limit_bytes))
    times = StepTimes(1.0, 2.0, 3.0)
    decisions = [packing.controller.after_step(iteration, times) for iteration in range(30)]
    assert packing.controller.packing == ExpertPacking(4, 4, factor)
    assert [decision.reason for decision in decisions if decision][-1] is Reason.NO_MEMORY
