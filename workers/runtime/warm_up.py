"""Warms a process up: does everything slow that is not specific to a job before a job is known."""

from __future__ import annotations

import io
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import default_collate

from workers.runtime.process_group import interface_of

_LOOPBACK = "127.0.0.1"


def warm_up() -> None:
    """Run a toy iteration under DDP, and save and load a state.

    PyTorch imports and builds much of itself at first use (optimizers, the autograd engine, gloo,
    serialisation). Done here, it does not lengthen the pause of a rescale. No GPU is touched: the worker's
    GPU is not known yet.
    """
    before = os.environ.get("GLOO_SOCKET_IFNAME")
    loopback = interface_of(_LOOPBACK)
    if loopback is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = loopback
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        _toy_iteration()
    finally:
        dist.destroy_process_group()
        if before is None:
            os.environ.pop("GLOO_SOCKET_IFNAME", None)
        else:
            os.environ["GLOO_SOCKET_IFNAME"] = before


def _toy_iteration() -> None:
    module = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.ReLU(), nn.Flatten(), nn.Linear(32, 8), nn.LayerNorm(8)
    )
    model = DistributedDataParallel(module)
    samples = default_collate([(torch.rand(1, 6, 6), 1), (torch.rand(1, 6, 6), 2)])
    for kind in (torch.optim.AdamW, torch.optim.SGD):
        optimizer = kind(module.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _step: 1.0)
        nn.functional.cross_entropy(model(samples[0]), samples[1]).backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    dist.all_reduce(torch.zeros(1, dtype=torch.float64))
    buffer = io.BytesIO()
    torch.save({"model": module.state_dict(), "optimizer": optimizer.state_dict()}, buffer)
    buffer.seek(0)
    torch.load(buffer, weights_only=True)
