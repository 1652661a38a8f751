"""Streamed models give the bits of resident models, in any order of their layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from moe.moesys.ring import schedule_ring, spread_layers
from moe.moesys.serving_ring import ServingRing
from tests.serving.ring.towers import CPU, WIDTH, Block, Tower, bytes_with, encoder_layer, make_pair, mixture
from workers.runtime.failures import WorkerFailureError
from workers.serving.ring import layer_ring
from workers.serving.ring.layer_ring import LayerRing, RingError
from workers.serving.ring.layers import count_bytes, find_layers
from workers.serving.ring.placing import admit, place_model
from workers.serving.ring.transfers import ThreadTransfers

ROWS = torch.linspace(-1, 1, 12).view(3, 4)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    torch.manual_seed(7)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def ask(model: nn.Module, ring: LayerRing | None = None, rows: Tensor = ROWS) -> Tensor:
    with torch.inference_mode():
        if ring is None:
            outputs: Tensor = model(rows)
            return outputs
        with ring.call():
            return ask(model, rows=rows)


@pytest.mark.parametrize(
    ("layer", "layers", "sections", "passes"),
    [
        *((Block, layers, sections, 10) for layers, sections in ((3, 2), (7, 2), (7, 3), (7, 4), (8, 7))),
        (mixture, 5, 2, 3),
        (mixture, 6, 4, 3),
        (encoder_layer, 4, 3, 2),
    ],
)
def test_streamed_model_gives_the_bits_of_a_resident_one(
    layer: Callable[[], nn.Module], layers: int, sections: int, passes: int
) -> None:
    resident, streamed, ring = make_pair(Tower(layers, layer), sections)
    addresses = ring.addresses
    for shift in range(passes):
        assert torch.equal(ask(streamed, ring, ROWS + shift), ask(resident, rows=ROWS + shift))
    assert ring.addresses == addresses
    assert ring.unexpected == 0
    assert ring.plan.pinned == spread_layers(layers, sections)
    assert len(ring.addresses) == 2


def test_copies_are_those_of_the_schedule() -> None:
    _, streamed, ring = make_pair(Tower(7), 4)
    before = ring.report()["loads"]
    assert before == 5, "each layer that streams was tried once"
    for _ in range(6):
        ask(streamed, ring)
    # Two layers are copied ahead of the first call, and two for the next call.
    planned = schedule_ring(7, 4, 1.0, 1.0, 6, ring.plan.pinned).loads
    report = ring.report()
    assert report["loads"] - before in (planned + 1, planned + 2)
    assert (report["calls"], report["entered"]) == (6, 42)


@pytest.mark.parametrize(
    "order", [[6, 5, 4, 3, 2, 1, 0], [0, 3, 3, 5], [0, 1, 2, 4, 5, 6, 4, 5, 6], [1, 0, 2, 1, 0, 2]]
)
def test_any_order_of_layers_gives_the_same_bits(order: list[int]) -> None:
    resident, streamed, ring = make_pair(Tower(7), 3)
    resident.order = streamed.order = order
    for _ in range(5):
        assert torch.equal(ask(streamed, ring), ask(resident))


def test_order_of_the_layers_is_learned() -> None:
    _, streamed, ring = make_pair(Tower(7), 3)
    streamed.order = [0, 2, 4, 6, 1, 3, 5]
    ask(streamed, ring)
    learned = ring.unexpected
    assert learned > 0
    for _ in range(4):
        ask(streamed, ring)
    assert ring.unexpected == learned


def test_call_that_fails_half_way_harms_no_later_one() -> None:
    resident, streamed, ring = make_pair(Tower(7), 2)
    streamed.order = [0, 1, 2, 99]
    for _ in range(2):
        with pytest.raises(IndexError):
            ask(streamed, ring)
    streamed.order = resident.order
    assert torch.equal(ask(streamed, ring), ask(resident))


def test_parameters_that_are_shared_or_strided_stay_on_the_device() -> None:
    torch.manual_seed(7)
    model = Tower(5)
    model.layers[1].scale = model.layers[3].scale
    model.layers[2].outer.weight = nn.Parameter(torch.rand(64, WIDTH).t())
    resident, streamed, ring = make_pair(model, 2)
    (layers,) = [layer_set for layer_set in find_layers(resident) if layer_set]
    streaming = {parameter for layer in layers for parameter in layer.parameters}
    left = {name for name, parameter in resident.layers.named_parameters() if parameter not in streaming}
    assert left == {"1.scale", "2.outer.weight"}
    assert torch.equal(ask(streamed, ring), ask(resident))


def test_layer_that_is_not_on_the_device_cannot_be_read() -> None:
    _, streamed, ring = make_pair(Tower(7), 2)
    ask(streamed, ring)
    with pytest.raises(RuntimeError):
        torch.zeros(3, WIDTH) @ streamed.layers[5].inner.weight.t()


def test_model_that_fits_is_placed_whole() -> None:
    model = Tower(5)
    assert place_model(model, CPU, None) is None
    assert place_model(model, CPU, count_bytes(model)) is None
    assert place_model(model, CPU, count_bytes(model) - 1) is not None


def test_model_of_which_two_layers_do_not_fit_is_declined() -> None:
    model = Tower(5)
    least = bytes_with(model, 2)
    with pytest.raises(WorkerFailureError, match=f"with two of its layers there .* take {least}") as raised:
        place_model(model, CPU, least - 1)
    assert raised.value.reason == "declined"
    with pytest.raises(WorkerFailureError, match="no mixture-of-experts layers or list of modules"):
        place_model(nn.Linear(8, 8), CPU, 100)


def test_whole_layers_stream_where_experts_do_not_suffice() -> None:
    def block() -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, 512), nn.Linear(512, WIDTH), mixture())

    torch.manual_seed(7)
    model = Tower(6, block)
    sets = [layer for layer in find_layers(model) if layer]
    assert [len(layer_set) for layer_set in sets] == [6, 6]
    ring = place_model(model, CPU, bytes_with(model, 2) - 1)
    assert ring is not None
    assert ring.plan.section_bytes == sets[1][0].bytes


class Slow(ThreadTransfers):
    """Copies that take a second each, by their reported times."""

    def seconds(self, transfer: Any) -> float:
        super().seconds(transfer)
        return 1.0


def test_latency_target_decides_on_admission(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_ring, "ThreadTransfers", Slow)
    _, _, ring = make_pair(Tower(7), 4)
    admit(ring, None)
    admit(ring, 5.5)
    with pytest.raises(WorkerFailureError) as raised:
        admit(ring, 4.5)
    assert raised.value.reason == "declined"
    needed = ring.plan.with_sections(5).device_bytes
    assert raised.value.message == (
        "5 of 7 layers stream from host memory; copying one takes 1000 ms, so a call of predict takes at "
        f"least 5000 ms; the latency target is 4500 ms. {needed} bytes of device memory would meet it, or a "
        "target of 5000 ms."
    )


class Broken(ThreadTransfers):
    """Copies that fail, or copy wrong bytes, from a given number on."""

    copies, fails_from, wrong_from = 0, 10**9, 10**9

    def _copy(self, source: Tensor, target: Tensor) -> float:
        type(self).copies += 1
        if self.copies >= self.fails_from:
            raise OSError("page is poisoned")
        seconds = super()._copy(source, target)
        if self.copies >= self.wrong_from:
            target[0] += 1
        return seconds


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> type[Broken]:
    class Fresh(Broken):
        pass

    monkeypatch.setattr(layer_ring, "ThreadTransfers", Fresh)
    return Fresh


def test_layer_that_cannot_be_copied_ends_all_answers(broken: type[Broken]) -> None:
    resident, streamed, ring = make_pair(Tower(7), 2)
    broken.fails_from = broken.copies + 3
    with pytest.raises(RingError, match="layers.*could not be copied .* page is poisoned"):
        ask(streamed, ring)
    with pytest.raises(RingError, match="page is poisoned"):
        ask(streamed, ring)
    assert "page is poisoned" in ring.failure
    assert torch.isfinite(ask(resident)).all()


def test_damaged_copy_is_found_before_serving(broken: type[Broken]) -> None:
    broken.wrong_from = 4
    with pytest.raises(WorkerFailureError, match="layers.3 differs on the device from host memory"):
        make_pair(Tower(7), 2)


def test_missing_host_memory_is_a_failed_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Tensor:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(LayerRing, "_take_to_host", refuse)
    with pytest.raises(WorkerFailureError, match="2 of 7 layers cannot be built: .*allocate") as raised:
        make_pair(Tower(7), 2)
    assert raised.value.reason == "start_failed"


def test_ring_times_count_passes_and_computation() -> None:
    _, streamed, ring = make_pair(Tower(7), 4)
    assert (ring.times().compute_seconds, ring.times().passes) == (0.0, 1.0)
    streamed.order = streamed.order * 2
    ask(streamed, ring)
    assert ring.times().passes == 2.0
    assert ring.times().compute_seconds > 0
    assert isinstance(ring.plan, ServingRing)
