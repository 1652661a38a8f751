"""An emulated accelerator takes the time that its model gives."""

from __future__ import annotations

import pytest

from workers.runtime import device_models
from workers.runtime.device_models import DeviceModel, Pacer

MODEL = DeviceModel(
    fixed_seconds=0.01,
    seconds_per_sample=0.002,
    latency_seconds=0.001,
    intra_server_bytes_per_second=1e9,
    inter_server_bytes_per_second=1e8,
)


def test_one_gpu_synchronises_nothing() -> None:
    assert MODEL.iteration_seconds(32, 1, 1e9, same_server=True) == pytest.approx(0.01 + 0.064)


def test_a_ring_of_four_moves_three_halves_of_the_parameters() -> None:
    inside = MODEL.iteration_seconds(8, 4, 1e6, same_server=True)
    across = MODEL.iteration_seconds(8, 4, 1e6, same_server=False)
    assert inside == pytest.approx(0.01 + 0.016 + 2 * 0.001 + 1.5e6 / 1e9)
    assert across == pytest.approx(0.01 + 0.016 + 2 * 0.001 + 1.5e6 / 1e8)


class FakeTime:
    """A clock that moves only when somebody works or sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(device_models, "time", fake)
    return fake


def _iterate(clock: FakeTime, pacer: Pacer, work_seconds: list[float]) -> float:
    begun = clock.now
    for seconds in work_seconds:
        started = clock.now
        clock.now += seconds
        pacer.pad(started)
    return clock.now - begun


def test_iterations_are_padded_to_the_models_time(clock: FakeTime) -> None:
    assert _iterate(clock, Pacer(0.1, 0.08), [0.03] * 10) == pytest.approx(1.0)


def test_a_hiccup_of_the_host_is_made_up_for(clock: FakeTime) -> None:
    assert _iterate(clock, Pacer(0.1, 0.08), [0.03, 0.15, 0.03, 0.03]) == pytest.approx(0.4)


def test_a_host_that_is_too_slow_shows(clock: FakeTime) -> None:
    assert _iterate(clock, Pacer(0.1, 0.08), [0.3] * 10) == pytest.approx(3.0)


def test_other_work_is_not_made_up_for(clock: FakeTime) -> None:
    pacer = Pacer(0.1, 0.08)
    before = _iterate(clock, pacer, [0.03])
    clock.now += 0.05
    pacer.restart()
    assert before + _iterate(clock, pacer, [0.03]) == pytest.approx(0.2)
