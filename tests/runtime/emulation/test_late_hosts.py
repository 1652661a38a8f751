"""Late threads of the host do not change emulated time, or their lag is reported."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from communication.library.codecs import WIRE_FORMATS
from communication.profiles.codec import CodecProfile, Device
from tests.runtime.emulation.test_device_models import FakeEmulation, FakeTime, _pace
from workers.runtime.emulation import emulated_time
from workers.runtime.emulation.emulated_codecs import EmulatedCourse
from workers.runtime.emulation.emulated_time import EmulatedClock, Overrun

#: A hundredth of a second to encode, a thousandth to decode, for up to a hundred elements.
CODECS_HERE = {
    ("dgc", Device.GPU): CodecProfile(
        "dgc", Device.GPU, WIRE_FORMATS["dgc"], np.array([100]), np.array([0.01]), np.array([0.001])
    )
}
LAYER_SECONDS = 0.02
LAYERS = 5


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(emulated_time, "time", fake)
    monkeypatch.setattr("emulated_links.client.time", fake)
    monkeypatch.setattr(emulated_time, "GRAIN_SECONDS", 0.0)
    return fake


@pytest.fixture
def device(clock: FakeTime) -> EmulatedClock:
    """Return a clock whose iteration has begun in this thread."""
    device = EmulatedClock()
    device.begin(1.0)
    return device


def _beside(work: Callable[[], None]) -> None:
    """Run in another thread, as the exchanges of several collectives do."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def _decoded(device: EmulatedClock, came_at: float) -> float:
    """Return when a thread beside the passes has decoded an arrival at that time; it decodes now."""
    decoded_at: list[float] = []

    def decode() -> None:
        course = EmulatedCourse(device, CODECS_HERE)
        course._at = came_at - 0.001
        course.goes_on()
        device.asks().ended_at = came_at
        course.asked()
        course.came()
        course.coded("decode", "dgc", Device.GPU, 100)
        decoded_at.append(course.at)

    _beside(decode)
    return decoded_at[0]


@pytest.mark.parametrize("layers_done", range(1, LAYERS + 1))
def test_a_late_decoding_thread_adds_no_emulated_time(
    device: EmulatedClock, clock: FakeTime, layers_done: int
) -> None:
    """An arrival in the middle of the first layer is decoded after it, even if the host decodes it later."""
    overrun, begun = Overrun(device), device.at
    for _ in range(layers_done):
        device.spend(LAYER_SECONDS)
    assert _decoded(device, begun + 0.01) - begun == pytest.approx(LAYER_SECONDS + 0.001)
    for _ in range(LAYERS - layers_done):
        device.spend(LAYER_SECONDS)
    device.reach(0.0)
    assert overrun.elapsed_seconds() == pytest.approx(LAYERS * LAYER_SECONDS + 0.001)
    assert overrun.share() == 0.0


def test_the_order_of_decoding_threads_does_not_change_their_total(device: EmulatedClock) -> None:
    """Threads go in the order of their emulated requests; the device still does one at a time."""
    begun = device.at
    for _ in range(LAYERS):
        device.spend(LAYER_SECONDS)
    assert _decoded(device, begun + 0.03) - begun == pytest.approx(0.041)
    assert _decoded(device, begun + 0.025) - begun == pytest.approx(0.041)
    assert _decoded(device, begun + 0.031) - begun == pytest.approx(0.043)
    assert device.at - begun == pytest.approx(0.103)


def test_late_passes_encode_when_their_gradient_was_ready(device: EmulatedClock, clock: FakeTime) -> None:
    """Another thread has decoded a later arrival meanwhile: this neither delays the passes nor takes their
    time."""
    overrun, begun = Overrun(device), device.at
    device.spend(LAYER_SECONDS)
    clock.now += 0.4
    assert _decoded(device, begun + 0.43) - begun == pytest.approx(0.431)
    course = EmulatedCourse(device, CODECS_HERE)
    course.goes_on()
    course.coded("encode", "dgc", Device.GPU, 100)
    assert course.at - begun == pytest.approx(LAYER_SECONDS + 0.01)
    for _ in range(LAYERS - 1):
        device.spend(LAYER_SECONDS)
    assert device.at - begun == pytest.approx(LAYERS * LAYER_SECONDS + 0.01)
    device.reach(0.0)
    assert overrun.elapsed_seconds() == pytest.approx(0.431)
    assert overrun.share() == 0.0


def test_decoding_is_charged_to_the_layer_that_reaches_it(device: EmulatedClock, clock: FakeTime) -> None:
    begun = device.at
    clock.now += 0.03
    _decoded(device, begun + 0.03)
    ends = []
    for _ in range(3):
        device.spend(LAYER_SECONDS)
        ends.append(device.at - begun)
    assert ends == pytest.approx([0.02, 0.041, 0.061])
    assert device.coded_seconds == pytest.approx(0.001)


def test_passes_do_not_wait_for_exchanges_that_their_lag_made_late(clock: FakeTime) -> None:
    """Later operations begin when the passes are done; only DDP's own request waits."""
    emulation = FakeEmulation()
    device, paced = emulation.clock, _pace(emulation)
    paced.begin()
    begun = device.at
    course = EmulatedCourse(device, CODECS_HERE)
    asked = device.asks()
    course.asked()
    asked.ended_at = emulation.received_at = begun + 0.5
    clock.now += 0.6
    paced.forward_done()
    paced.backward_begins()
    paced.backward_done()
    assert device.now() - begun == pytest.approx(0.1)
    device.asks().ended_at = begun + 0.3
    paced.backward_done()
    assert device.now() - begun == pytest.approx(0.3)


@pytest.mark.parametrize(("waits", "lost_seconds"), [(False, 0.5), (True, 0.1)])
def test_only_a_thread_waiting_for_a_collective_is_excused_its_lag(
    clock: FakeTime, waits: bool, lost_seconds: float
) -> None:
    device = EmulatedClock()
    device.begin(0.05)
    asked = device.asks()
    asked.ended_at = device.at + 0.4
    if waits:
        device.waited(asked)
    clock.now += 0.5
    device.now()
    assert device.lost_seconds == pytest.approx(lost_seconds)
