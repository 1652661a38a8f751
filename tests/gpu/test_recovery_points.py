"""A recovery point is copied from the GPU through pinned sub-buffers: whole, and as of the end of the
iteration."""

from __future__ import annotations

import os
from itertools import chain
from pathlib import Path

import pytest
import torch

from recovery.store.client import _write_all
from tests.gpu.conftest import ON_THE_CPU
from workers.runtime.state.device_copies import HOST_SUB_BUFFER_BYTES, HOST_SUB_BUFFERS, copies_from
from workers.runtime.state.shards import Shard, ShardCutter

pytestmark = pytest.mark.skipif(ON_THE_CPU, reason="there is nothing to leave")
DEVICE = torch.device("cuda", 0)


def test_a_state_larger_than_all_sub_buffers_arrives_whole() -> None:
    elements = HOST_SUB_BUFFERS * HOST_SUB_BUFFER_BYTES // 4 + 12_345
    values = [torch.randn(elements, device=DEVICE), torch.arange(7, device=DEVICE), torch.ones(0)]
    came = b"".join(map(bytes, copies_from(DEVICE).chunks(values[:2])))
    assert came == b"".join(value.cpu().numpy().tobytes() for value in values)


def test_copies_wait_for_kernels_that_were_launched_before() -> None:
    """Kernels launched later do not disturb it."""
    value = torch.zeros(1 << 20, device=DEVICE)
    for _ in range(200):
        value += 1.0
    came = b"".join(map(bytes, copies_from(DEVICE).chunks([value])))
    assert came == torch.full((1 << 20,), 200.0).numpy().tobytes()


def test_a_shard_left_on_the_device_is_written_like_a_fetched_one(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(300, 200), torch.nn.BatchNorm1d(200)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, 300, device=DEVICE)).sum().backward()
    optimizer.step()
    state = {
        "generation": 1,
        "iteration": 1,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
    }
    names = frozenset(name for name, _ in model.named_parameters())
    cutter = ShardCutter(names, rank=0, world_size=2)
    fetched: Shard = cutter.cut(state, copy=False)
    left: Shard = cutter.cut(state, copy=False, leave=True)
    assert left.left, "something is on the device"
    assert not fetched.left
    descriptor = os.open(tmp_path / "shard", os.O_RDWR | os.O_CREAT)
    _write_all(descriptor, chain([b""], left.pieces()))
    expected = b"".join(map(bytes, fetched.pieces()))
    assert os.pread(descriptor, left.bytes + 1, 0) == expected
    os.close(descriptor)
