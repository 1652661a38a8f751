"""A worker's share of a disk's bandwidth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from emulated_links.rates import DEFAULT_LINKS, ServerLinks
from workers.agent.machine import disk_rates
from workers.agent.machine.configuration import Configuration, Emulation
from workers.agent.machine.disk_rates import disk_rate_of_worker, measure_disk


def configuration(data: Path, **settings: Any) -> Configuration:
    usual = Configuration(
        server_url="http://server",
        stream_url="http://stream",
        checkpoint_url="file:///checkpoints",
        data=data,
        name="node",
        address="127.0.0.1",
    )
    return replace(usual, **settings)


def test_gpus_share_a_rate_that_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = iter([800.0])
    monkeypatch.setattr(disk_rates, "measure_disk", lambda _folder: next(rates))
    assert disk_rate_of_worker(configuration(tmp_path), 4) == 200.0
    assert disk_rate_of_worker(configuration(tmp_path), 2) == 400.0


def test_a_configured_share_is_used_unchanged(tmp_path: Path) -> None:
    assert disk_rate_of_worker(configuration(tmp_path, worker_disk_bytes_per_second=7), 4) == 7.0


def test_emulated_devices_are_not_slowed_down(tmp_path: Path) -> None:
    emulation = Emulation("emulated", {}, ServerLinks.from_message(DEFAULT_LINKS), None)
    assert disk_rate_of_worker(configuration(tmp_path, emulate=emulation), 3) is None


def test_a_measurement_leaves_nothing_behind(tmp_path: Path) -> None:
    assert measure_disk(tmp_path) > 0
    assert not list(tmp_path.iterdir())
