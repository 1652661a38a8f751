"""Encoding and decoding take an emulated device's time, as the tables of its codecs say."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from communication.hooks.codecs.names import CODECS
from communication.library.codecs import WIRE_FORMATS, gpu_codec
from communication.profiles.codec import CodecProfile, Device
from tests.runtime.emulation.test_device_models import FakeEmulation, FakeTime, _pace
from workers.runtime.emulation import emulated_time
from workers.runtime.emulation.device_models import DeviceModel
from workers.runtime.emulation.emulated_codecs import EmulatedCourse
from workers.runtime.emulation.emulated_time import EmulatedClock
from workers.runtime.measuring.codec_times import SIZES, codec_fields
from workers.runtime.measuring.gradient_times import GradientTimes

#: A hundredth of a second to encode, a thousandth to decode, for up to a hundred elements.
TABLE = CodecProfile(
    "dgc", Device.GPU, WIRE_FORMATS["dgc"], np.array([100]), np.array([0.01]), np.array([0.001])
)
CODECS_HERE = {("dgc", Device.GPU): TABLE}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(emulated_time, "time", fake)
    monkeypatch.setattr("emulated_links.client.time", fake)
    monkeypatch.setattr(emulated_time, "GRAIN_SECONDS", 0.0)
    return fake


def _course(clock: EmulatedClock) -> EmulatedCourse:
    clock.begin(1.0)
    return EmulatedCourse(clock, CODECS_HERE)


def test_encoding_takes_time_from_the_backward_pass(clock: FakeTime) -> None:
    device = EmulatedClock()
    course = _course(device)
    begun = clock.now
    device.spend(0.02)
    course.goes_on()
    course.coded("encode", "dgc", Device.GPU, 200)
    assert course.at - begun == pytest.approx(0.04)
    device.spend(0.02)
    assert clock.now - begun == pytest.approx(0.06)


def test_gaps_between_gradients_exclude_codec_time(clock: FakeTime) -> None:
    emulation = FakeEmulation()
    module = torch.nn.Linear(2, 2)
    paced = _pace(emulation, module, gradient_shares={"weight": 1.0, "bias": 1.0})
    times = GradientTimes(module, torch.device("cpu"), paced)
    times.watching = True
    course = EmulatedCourse(emulation.clock, CODECS_HERE)
    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: course.coded("encode", "dgc", Device.GPU, 100))
    paced.begin()
    times.begins()
    loss = module(torch.ones(1, 2)).sum()
    paced.forward_done()
    times.backward_begins()
    paced.backward_begins()
    loss.backward()
    paced.backward_done()
    times.synchronised()
    paced.end()
    times.ends()
    (iteration,) = times.iterations
    backward = 0.1 * 2 / 3
    assert [at for _, at in iteration.ready] == pytest.approx([backward / 2, backward])
    assert iteration.seconds == pytest.approx(0.1 + 2 * 0.01)


def test_arrivals_are_decoded_one_at_a_time_in_order(clock: FakeTime) -> None:
    device = EmulatedClock()
    first = _course(device)
    second = EmulatedCourse(device, CODECS_HERE)
    begun = clock.now
    for course in (first, second):
        device.asks().ended_at = begun + 0.05
        course.asked()
        course.came()
        course.coded("decode", "dgc", Device.GPU, 100, payloads=4)
    assert (first.at - begun, second.at - begun) == pytest.approx((0.054, 0.058))
    # The iteration does not end earlier.
    device.reach(0.0)
    assert clock.now - begun == pytest.approx(0.058)


def test_codecs_on_the_cpu_are_not_charged_emulated_time(clock: FakeTime) -> None:
    course = _course(EmulatedClock())
    begun = clock.now
    course.coded("encode", "dgc", Device.CPU, 10**6)
    assert clock.now == begun


def test_a_thread_beside_the_backward_pass_has_its_own_clock(clock: FakeTime) -> None:
    """A collective starts when its gradient was ready, however far the backward pass has advanced."""
    device = EmulatedClock()
    course = _course(device)
    ready = course.at
    device.spend(0.5)
    asked: list[float] = []

    def beside() -> None:
        course.goes_on()
        asked.append(device.now())

    thread = threading.Thread(target=beside)
    thread.start()
    thread.join()
    assert asked == [ready]
    assert device.now() == ready + 0.5


def test_measured_codec_times_are_those_of_the_device_model(clock: FakeTime) -> None:
    table = {"codec": "dgc", "device": "gpu", "elements": [1 << 12, 1 << 16]}
    measured = {**table, "encode_seconds": [0.001, 0.004], "decode_seconds": [0.002, 0.002]}
    model = DeviceModel.from_message({"fixed_seconds": 0.1, "seconds_per_sample": 0.0, "codecs": [measured]})
    device = EmulatedClock()
    fields = codec_fields(torch.device("cpu"), lambda: EmulatedCourse(device, model.codecs))
    assert {row["codec"] for row in fields} == set(CODECS) - {"none"}
    for row in fields:
        profile = model.codecs[str(row["codec"]), Device.GPU]
        assert row["encode_seconds"] == pytest.approx(profile.seconds_to_encode(SIZES).tolist())
        assert row["decode_seconds"] == pytest.approx(profile.seconds_to_decode(SIZES).tolist())
    # Codecs without a table take the library's times.
    assert model.codecs["fp16", Device.GPU].digest == gpu_codec("fp16").digest


def test_gradients_arrive_in_the_shares_of_the_device_model(
    clock: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = torch.nn.Linear(4, 4)
    paced = _pace(FakeEmulation(), module, gradient_shares={"weight": 1.0, "bias": 3.0})
    ready: dict[str, float] = {}
    for name, parameter in module.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _p, name=name: ready.update({name: clock.now}))
    paced.begin()
    loss = module(torch.ones(1, 4)).sum()
    paced.forward_done()
    forward = clock.now
    paced.backward_begins()
    loss.backward()
    paced.backward_done()
    backward = 0.1 * 2 / 3
    times = sorted(at - forward for at in ready.values())
    first = min(ready, key=lambda name: ready[name])
    share = {"weight": 0.25, "bias": 0.75}[first]
    assert times == pytest.approx([share * backward, backward])
