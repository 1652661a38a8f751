"""A model whose layers stream to a GPU gives the bits of a resident one."""

from __future__ import annotations

import copy

import torch
from torch import nn

from moe.moesys.ring import spread_layers
from tests.gpu.conftest import ON_THE_CPU
from workers.serving.ring.layers import count_bytes
from workers.serving.ring.placing import place_model

DEVICE = torch.device("cpu" if ON_THE_CPU else "cuda")
WIDTH, LAYERS = 512, 8


def test_streamed_layers_give_the_bits_of_resident_ones() -> None:
    torch.manual_seed(3)
    streamed = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))).eval()
    resident = copy.deepcopy(streamed).to(DEVICE)
    ring = place_model(streamed, DEVICE, int(0.6 * count_bytes(streamed)))
    assert ring is not None
    assert ring.plan.pinned == spread_layers(LAYERS, ring.plan.sections)
    rows = torch.randn(64, WIDTH, device=DEVICE)
    with torch.inference_mode():
        for _ in range(20):
            with ring.call():
                outputs = streamed(rows)
            assert torch.equal(outputs, resident(rows))
    report = ring.report()
    assert (report["calls"], report["entered"], ring.unexpected) == (20, 20 * LAYERS, 0)
    assert report["copy_seconds"] > 0
    ring.close()
