"""The measured scaling curve is that of the device."""

from __future__ import annotations

from math import log2
from typing import Any

import pytest

from tests.runtime.conftest import REGRESSION, emulated, regression
from workers.runtime.at_home.local_agent import LocalAgent
from workers.runtime.at_home.local_worker import Message
from workers.runtime.emulation.device_models import DeviceModel
from workers.runtime.profiling import WARM_UP_ITERATIONS

COMPUTE_BOUND = emulated(fixed_seconds=0.02, seconds_per_sample=0.01, latency_seconds=0.004)


def _profile(agent: LocalAgent, world_size: int, **changes: Any) -> tuple[list[Message], Message]:
    plan = {"levels": [1, 2, 4, 8], "seconds_per_level": 0.8, "max_seconds": 60, **changes.pop("profile", {})}
    assignment = regression(purpose="profiling", profile=plan, **changes)
    generation = agent.start_generation(REGRESSION, assignment, world_size)
    done = generation.leader.wait_for_event("profile_done")
    assert [worker.end() for worker in generation.workers] == [0] * world_size
    events = generation.leader.of_kind("event")
    return [event for event in events if event["kind"] == "profile_level"], done


@pytest.mark.live
def test_the_curve_of_an_emulated_device_is_its_models(agent: LocalAgent) -> None:
    levels, done = _profile(agent, 4, batch=24, device=COMPUTE_BOUND)
    assert [level["gpus"] for level in levels] == [1, 2, 4], "levels beyond the block are not measured"
    assert done["reason"] == "all_levels"
    model = DeviceModel.from_message(COMPUTE_BOUND["model"])
    for level in levels:
        # Small gradients: only latency counts, once for each doubling of the ranks.
        expected = model.compute_seconds(24 // level["gpus"]) + 0.004 * log2(level["gpus"])
        # The host is shared: it may sometimes be slower than the device, never faster.
        assert 0.6 / expected < level["iterations_per_second"] < 1.02 / expected
        assert level["train_seconds"] >= 0.999 * model.compute_seconds(24 // level["gpus"])
        assert level["pause_seconds"] > 0
        assert level["memory_bytes"] > 0
        assert 2**26 < level["host_memory_bytes"] < 2**36, "PyTorch alone takes more than 64 MiB"
        # AdamW keeps two values for each of the 289 parameters' own, and the generator's state is 5 kB.
        assert 3 * 4 * 289 + 5000 < level["state_bytes"] < 3 * 4 * 289 + 5000 + 8192 * (1 + level["gpus"])
    rates = [level["iterations_per_second"] for level in levels]
    assert rates[0] < rates[1] < rates[2]
    assert rates[1] / rates[0] > rates[2] / rates[1], "each doubling brings less"
    assert done["evaluate_seconds"] > 0


def test_measuring_does_not_make_up_for_earlier_host_lag(agent: LocalAgent) -> None:
    last_of_warm_up = regression(hyperparameters={"slow_at": WARM_UP_ITERATIONS})["hyperparameters"]
    device = emulated(fixed_seconds=0.05)
    profile = {"seconds_per_level": 0.3}
    levels, _done = _profile(agent, 1, device=device, hyperparameters=last_of_warm_up, profile=profile)
    assert levels[0]["iterations_per_second"] <= 1.02 / 0.05


def test_libraries_take_none_of_an_emulated_devices_memory(agent: LocalAgent) -> None:
    levels, _done = _profile(agent, 1, device=emulated(), profile={"seconds_per_level": 0.1})
    assert 0 < levels[0]["memory_bytes"] < levels[0]["host_memory_bytes"] - 100 * 2**20


@pytest.mark.live
def test_profiling_stops_at_the_first_level_without_gain(agent: LocalAgent) -> None:
    slow_network = emulated(fixed_seconds=0.03, latency_seconds=0.05)
    levels, done = _profile(agent, 4, device=slow_network)
    assert [level["gpus"] for level in levels] == [1, 2]
    assert done["reason"] == "no_gain"


def test_known_levels_of_fewer_gpus_are_not_measured_again(agent: LocalAgent) -> None:
    """Otherwise slow iterations on few GPUs would use up the time for measuring more GPUs, each time."""
    device = emulated(fixed_seconds=0.03, latency_seconds=0.01, within_server=1e7)
    for known, reason in ((1 / 0.03, "no_gain"), (1e-6, "all_levels")):
        profile = {"levels": [2], "known": known, "seconds_per_level": 0.2}
        levels, done = _profile(agent, 2, device=device, profile=profile)
        assert [level["gpus"] for level in levels] == [2]
        assert done["reason"] == reason


def test_levels_that_do_not_divide_the_batch_are_left_out(agent: LocalAgent) -> None:
    levels, done = _profile(agent, 2, batch=9, profile={"levels": [1, 2, 3], "seconds_per_level": 0.2})
    assert [level["gpus"] for level in levels] == [1]
    assert done["reason"] == "all_levels"


@pytest.mark.slow
def test_a_short_job_is_measured_no_further_than_it_trains(agent: LocalAgent) -> None:
    beyond = regression(hyperparameters={"fail_at": 3})["hyperparameters"]
    profile = {"levels": [1, 2], "seconds_per_level": 0.2, "known": 1e-6}
    changes = {"device": emulated(), "hyperparameters": beyond, "profile": profile}
    levels, done = _profile(agent, 2, iterations=3, **changes)
    assert [level["gpus"] for level in levels][0] == 1
    assert levels[0]["iterations_per_second"] <= 1.02 / 0.02
    assert done["reason"] in ("all_levels", "no_gain")


@pytest.mark.live
def test_profiling_ends_when_its_time_is_up(agent: LocalAgent) -> None:
    levels, done = _profile(
        agent, 2, device=COMPUTE_BOUND, profile={"seconds_per_level": 5, "max_seconds": 1}
    )
    assert [level["gpus"] for level in levels] == [1]
    assert done["reason"] == "time"


@pytest.mark.live
def test_evaluations_are_charged_by_their_frequency(agent: LocalAgent) -> None:
    often = regression(hyperparameters={"evaluate_every": 1})["hyperparameters"]
    levels, done = _profile(agent, 1, device=COMPUTE_BOUND, hyperparameters=often)
    undisturbed = 0.02 + 24 * 0.01
    assert 1 / levels[0]["iterations_per_second"] >= 0.98 * (undisturbed + done["evaluate_seconds"])
