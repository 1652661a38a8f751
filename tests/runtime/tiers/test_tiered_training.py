"""Training with experts' states in files gives the same bits as with all states in memory."""

from __future__ import annotations

import copy
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from moe.moesys.cache import Key
from tests.runtime.tiers.tiny_model import (
    EXPERTS,
    LAYERS,
    MakeOptimizer,
    TinyModel,
    adam,
    in_tiers,
    momentum,
    train,
)
from workers.runtime.failures import WorkerFailureError
from workers.runtime.tiers.disk_share import DiskShare

HANG_SECONDS = 60.0


def assert_same_bits(left: nn.Module, right: nn.Module) -> None:
    pairs = zip(left.state_dict().values(), right.state_dict().values(), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)


def test_three_states_in_memory_give_the_same_bits(tmp_path: Path) -> None:
    """Item 3 of "done means": 50 steps, and bytes of files by misses and write-backs."""
    model = TinyModel()
    losses = train(model, adam(model), range(50))
    tiered, optimizer, tiers = in_tiers(tmp_path, 3)
    assert train(tiered, optimizer, range(50)) == losses
    tiers.host.flush()
    counts, state_bytes = tiers.host.counts(), 12 * tiers.steps.elements
    assert counts.misses + counts.fetched_ahead > 50
    assert counts.bytes_read == state_bytes * (counts.misses + counts.fetched_ahead)
    written = LAYERS * EXPERTS + counts.write_backs + counts.flushes
    assert counts.bytes_written == state_bytes * written
    assert tiers.host.files.bytes_on_disk == LAYERS * EXPERTS * (64 + state_bytes)
    assert {parameter.untyped_storage().nbytes() for parameter in tiered.layers[0].experts.parameters()} == {
        4
    }
    assert_same_bits(model, tiered)
    tiers.give_back()
    assert_same_bits(model, tiered)
    assert not list(tmp_path.glob("states/*"))


@pytest.mark.parametrize(("make", "clip", "rows"), [(adam, 0.5, 3), (momentum, None, 2)])
def test_clipping_and_other_optimizers_give_the_same_bits(
    tmp_path: Path, make: MakeOptimizer, clip: float | None, rows: int
) -> None:
    model = TinyModel()
    losses = train(model, make(model), range(4), clip)
    tiered, optimizer, tiers = in_tiers(tmp_path, 12, make)
    assert train(tiered, optimizer, range(4), clip) == losses
    assert tiers.steps.rows == rows
    assert tiers.predicted
    assert_same_bits(model, tiered)


def test_frozen_experts_are_not_stepped(tmp_path: Path) -> None:
    def train_frozen(model: TinyModel, optimizer: torch.optim.Optimizer) -> list[float]:
        losses = train(model, optimizer, range(3))
        outer = [expert.outer.weight for expert in model.layers[1].experts]
        for is_trained in (False, True):
            for parameter in outer:
                parameter.requires_grad_(is_trained)
            losses += train(model, optimizer, range(3, 6))
        return losses

    model = TinyModel()
    losses = train_frozen(model, adam(model))
    tiered, optimizer, _ = in_tiers(tmp_path, 3)
    assert train_frozen(tiered, optimizer) == losses
    assert_same_bits(model, tiered)


def test_states_are_whole_and_later_steps_keep_them(tmp_path: Path) -> None:
    model = TinyModel()
    optimizer = adam(model)
    train(model, optimizer, range(4))
    tiered, other_optimizer, tiers = in_tiers(tmp_path, 3)
    tiers.give_back()
    tiered.load_state_dict(model.state_dict())
    other_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    type(tiers)(tiered.experts(), other_optimizer, tmp_path / "again", 3)
    train(tiered, other_optimizer, range(4, 7))
    weights, states = tiered.state_dict(), other_optimizer.state_dict()
    before = copy.deepcopy((weights, states))
    train(tiered, other_optimizer, range(7, 8))
    expert = "layers.0.experts.3.inner.weight"
    number = [name for name, _ in model.named_parameters()].index(expert)
    assert torch.equal(weights[expert], before[0][expert])
    for name, value in states["state"][number].items():
        assert torch.equal(value, before[1]["state"][number][name])
    # Training continues from them in memory as if it had never been interrupted.
    continued = TinyModel(seed=5)
    last_optimizer = adam(continued)
    continued.load_state_dict(before[0])
    last_optimizer.load_state_dict(before[1])
    train(continued, last_optimizer, range(7, 8))
    train(model, optimizer, range(4, 8))
    assert_same_bits(model, continued)


def test_the_next_layer_is_fetched_while_one_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first layer's experts do not end their computation before a fetch of the second layer ended."""
    model, optimizer, tiers = in_tiers(tmp_path, EXPERTS)
    train(model, optimizer, range(1))
    fetched = threading.Event()
    fetch_ahead, compute = tiers.host.fetch_ahead, tiers._compute

    def note_fetch(key: Key) -> bool:
        has_room = fetch_ahead(key)
        if key[0] == 1 and threading.current_thread() is not threading.main_thread():
            fetched.set()
        return has_room

    def wait_for_fetch(*arguments: Any) -> torch.Tensor:
        assert fetched.wait(HANG_SECONDS)
        return compute(*arguments)

    monkeypatch.setattr(tiers.host, "fetch_ahead", note_fetch)
    monkeypatch.setattr(tiers, "_compute", wait_for_fetch)
    train(model, optimizer, range(1, 2))
    assert tiers.predicted


def test_a_lost_file_ends_the_worker_as_failed_storage(tmp_path: Path) -> None:
    model, optimizer, tiers = in_tiers(tmp_path, 3)
    train(model, optimizer, range(1))
    for path in tiers.host.files.folder.iterdir():
        path.unlink()
    with pytest.raises(WorkerFailureError, match="cannot be read") as caught:
        train(model, optimizer, range(1, 3))
    assert caught.value.reason == "storage_failed"


def test_a_worker_that_wrote_all_that_it_may_fails(tmp_path: Path) -> None:
    disk = DiskShare()
    model, optimizer, tiers = in_tiers(tmp_path, 3, disk=disk)
    train(model, optimizer, range(1))
    usage = tiers.usage()
    assert disk.written_bytes == usage.bytes_written > LAYERS * EXPERTS * tiers.host.files.state_bytes
    assert usage.stall_seconds > 0
    disk.max_written_bytes = disk.written_bytes + 2 * tiers.host.files.state_bytes
    with pytest.raises(WorkerFailureError, match=f"a worker may write {disk.max_written_bytes} on") as caught:
        train(model, optimizer, range(1, 3))
    assert caught.value.reason == "disk_writes_exceeded"
    assert disk.written_bytes == disk.max_written_bytes


def test_experts_of_several_shapes_are_an_error(tmp_path: Path) -> None:
    model = TinyModel()
    experts = model.experts()
    experts[1, 0] = nn.Linear(2, 2)
    optimizer = torch.optim.Adam([*model.parameters(), *experts[1, 0].parameters()])
    with pytest.raises(ValueError, match="same shapes"):
        type(in_tiers(tmp_path, 1)[2])(experts, optimizer, tmp_path / "other", 3)
