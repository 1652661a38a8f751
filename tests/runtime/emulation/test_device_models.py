"""An emulated accelerator computes no faster than its model, and a host that falls behind is reported."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from emulated_links import client
from workers.runtime.emulation import emulated_time
from workers.runtime.emulation.device_models import DeviceModel
from workers.runtime.emulation.emulated_time import EmulatedClock, Overrun
from workers.runtime.emulation.pace import Pace

MODEL = DeviceModel(fixed_seconds=0.04, seconds_per_sample=0.01)


class FakeTime:
    """A clock that advances only by work or sleep."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class FakeEmulation:
    """An emulation without traffic, or with the traffic that a test sets."""

    def __init__(self) -> None:
        self.clock = EmulatedClock()
        self.received_at = 0.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(emulated_time, "time", fake)
    monkeypatch.setattr(client, "time", fake)
    return fake


@pytest.fixture
def emulation(clock: FakeTime) -> FakeEmulation:
    return FakeEmulation()


def _pace(emulation: FakeEmulation, module: nn.Module | None = None, **changes: Any) -> Pace:
    return Pace(emulation, replace(MODEL, **changes), 6, module or nn.Linear(2, 2))  # type: ignore[arg-type]


def _iterate(clock: FakeTime, paced: Pace, work_seconds: list[float]) -> float:
    """Return the seconds of iterations whose real work takes `work_seconds`."""
    begun = clock.now
    for seconds in work_seconds:
        paced.begin()
        clock.now += seconds
        paced.forward_done()
        paced.backward_begins()
        paced.backward_done()
        paced.end()
    return clock.now - begun


def test_iterations_take_the_models_time(clock: FakeTime, emulation: FakeEmulation) -> None:
    assert _iterate(clock, _pace(emulation), [0.03] * 10) == pytest.approx(1.0)


def test_a_short_host_delay_is_made_up_for(clock: FakeTime, emulation: FakeEmulation) -> None:
    paced = _pace(emulation)
    overrun = Overrun(emulation.clock)
    assert _iterate(clock, paced, [0.03, 0.15, 0.03, 0.03]) == pytest.approx(0.4)
    assert overrun.share() == pytest.approx(0.0, abs=1e-9)


def test_a_host_that_is_too_slow_shows_and_counts_as_overrun(
    clock: FakeTime, emulation: FakeEmulation
) -> None:
    paced = _pace(emulation)
    overrun = Overrun(emulation.clock)
    assert _iterate(clock, paced, [0.3] * 10) == pytest.approx(3.0)
    assert overrun.share() == pytest.approx(2.0)


def test_other_work_is_not_made_up_for_and_is_no_overrun(clock: FakeTime, emulation: FakeEmulation) -> None:
    paced = _pace(emulation)
    _iterate(clock, paced, [0.03])
    clock.now += 0.05
    paced.passes(0.05)
    overrun = Overrun(emulation.clock)
    assert _iterate(clock, paced, [0.03]) == pytest.approx(0.1)
    assert overrun.share() == pytest.approx(0.0, abs=1e-9)


def test_other_work_is_charged_without_the_hosts_earlier_lag(
    clock: FakeTime, emulation: FakeEmulation
) -> None:
    """The lag of the optimizer's step is made up for in the next iteration, with or without other work
    between."""
    paced = _pace(emulation)
    begun = clock.now
    for _ in range(10):
        _iterate(clock, paced, [0.03])
        clock.now += 0.02 + 0.005
        paced.passes(0.005)
    _iterate(clock, paced, [0.03])
    assert clock.now - begun == pytest.approx(1.1 + 10 * 0.005)


def test_an_iteration_waits_for_what_it_receives(clock: FakeTime, emulation: FakeEmulation) -> None:
    paced = _pace(emulation)
    emulation.received_at = clock.now + 0.13
    assert _iterate(clock, paced, [0.03, 0.03]) == pytest.approx(0.23)


def test_gradients_come_one_by_one_in_proportion_to_their_elements(
    clock: FakeTime, emulation: FakeEmulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emulated_time, "GRAIN_SECONDS", 0.0)
    module = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 12, bias=False))
    paced = _pace(emulation, module)
    ready: list[float] = []
    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _parameter: ready.append(clock.now))
    begun = clock.now
    paced.begin()
    loss = module(torch.ones(1, 4)).sum()
    paced.forward_done()
    paced.backward_begins()
    loss.backward()
    # A third of the time is the forward pass; the last layer has three quarters of the elements, and its
    # gradient comes first.
    assert [at - begun for at in ready] == pytest.approx([0.1 / 3 + 0.05, 0.1])


def test_a_backward_pass_beside_iterations_is_not_paced(clock: FakeTime, emulation: FakeEmulation) -> None:
    module = nn.Linear(2, 2)
    _pace(emulation, module)
    begun = clock.now
    module(torch.ones(1, 2)).sum().backward()
    assert clock.now == begun
