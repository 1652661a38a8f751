"""Levels measured on a GPU: its memory, and levels that exceed it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.gpu.conftest import ON_THE_CPU, PATTERNS, START_SECONDS, patterns
from workers.runtime.at_home.local_agent import LocalAgent
from workers.runtime.at_home.local_worker import Message


def profiled(agent: LocalAgent, world_size: int, **changes: Any) -> tuple[list[Message], Message]:
    plan = {"levels": [1, 2], "seconds_per_level": 1.0, "max_seconds": 120}
    asked = patterns(purpose="profiling", profile=plan, **changes)
    generation = agent.start_generation(PATTERNS, asked, world_size, seconds=START_SECONDS)
    done = generation.leader.wait_for_event("profile_done", START_SECONDS)
    events = generation.leader.of_kind("event")
    return [event for event in events if event["kind"] == "profile_level"], done


def test_a_level_reports_its_speed_and_memory(agent: LocalAgent) -> None:
    levels, _ = profiled(agent, 1, hyperparameters={"memory_bytes": 1_000_000})
    (level,) = levels
    assert level["iterations_per_second"] > 0
    assert level["pause_seconds"] > 0
    assert level["memory_bytes"] >= 64 * 1_000_000, "64 samples hold a megabyte each"


def test_a_level_beyond_the_devices_memory_is_left_out(
    agent: LocalAgent,
) -> None:
    if ON_THE_CPU:
        pytest.skip("a CPU's memory is not taken whole")
    free, _total = torch.cuda.mem_get_info(0)
    # One rank would need one and a half times what there is; two that share the device as well, so neither
    # level fits and the measurement says so instead of failing.
    sample_bytes = int(1.5 * free / 64)
    levels, done = profiled(agent, 1, hyperparameters={"memory_bytes": sample_bytes})
    assert levels == []
    assert done["reason"] != "failed"
    # The device is usable afterwards.
    levels, _ = profiled(agent, 1)
    assert [level["gpus"] for level in levels] == [1]
