"""Gradients are summed in the same order of ranks in every iteration, so a restart changes no bit."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from tests.communication.hooks.ranks import run_on_ranks
from workers.runtime.synchronisation.model import DistributedModel


def gradients_twice() -> list[torch.Tensor]:
    """Return the averaged gradients of the first and of the second iteration, of the same batch and
    weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 24), nn.LayerNorm(24), nn.Tanh(), nn.Linear(24, 1))
    averaging = DistributedModel(model, init_sync=False, gradient_as_bucket_view=True)
    inputs = torch.randn(5, 8, generator=torch.Generator().manual_seed(dist.get_rank()))
    averages = []
    for _iteration in range(2):
        averaging.zero_grad()
        averaging.begin_iteration()
        with averaging.lend() as lent:
            loss = lent(inputs).square().mean()
        averaging.before_backward(loss)
        loss.backward()
        averaging.after_backward(in_pieces=False)
        averages.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).clone())
    return averages


def test_the_first_iteration_sums_buckets_in_the_usual_order() -> None:
    for first, second in run_on_ranks(3, gradients_twice):
        assert torch.equal(first, second)
