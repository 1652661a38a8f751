"""A mixture-of-experts layer computes the same on a GPU as on the CPU."""

from __future__ import annotations

import copy
from typing import Any

import torch

from punctual.moe import Adaptive, MoELayer, balance_loss, routing_counts
from tests.gpu.conftest import ON_THE_CPU

DEVICE = torch.device("cpu" if ON_THE_CPU else "cuda")


def run(layer: MoELayer, tokens: torch.Tensor, padding: torch.Tensor) -> dict[str, Any]:
    output = layer(tokens, padding)
    (output.square().mean() + balance_loss(layer)).backward()
    counts = routing_counts(layer)[""]
    return {
        "output": output.detach().cpu(),
        "gradients": [parameter.grad.cpu() for parameter in layer.parameters()],
        "counts": (counts.tokens, counts.multi_expert_tokens, counts.rows, counts.dropped),
        "balance_loss": counts.balance_loss,
    }


def test_layer_computes_the_same_as_on_the_cpu() -> None:
    torch.manual_seed(0)
    layer, tokens = MoELayer(64, 128, 8, Adaptive(0.05), capacity_factor=1.0), torch.randn(16, 32, 64)
    padding = torch.zeros(16, 32, dtype=torch.bool)
    padding[:, 28:] = True
    expected = run(copy.deepcopy(layer), tokens, padding)
    on_gpu = run(layer.to(DEVICE), tokens.to(DEVICE), padding.to(DEVICE))
    assert expected["counts"][3].any()
    torch.testing.assert_close(on_gpu, expected, rtol=1e-4, atol=1e-5)


def test_layer_trains_in_mixed_precision() -> None:
    torch.manual_seed(0)
    layer, tokens = MoELayer(64, 128, 8, Adaptive(0.05)).to(DEVICE), torch.randn(16, 32, 64, device=DEVICE)
    expected = layer(tokens)
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        output = layer(tokens)
    assert output.dtype == torch.float32
    torch.testing.assert_close(output, expected, rtol=0.05, atol=0.02)
    (output.sum() + balance_loss(layer)).backward()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())
