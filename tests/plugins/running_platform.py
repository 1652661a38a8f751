"""Common settings of tests' platforms: short periods, two agents."""

from __future__ import annotations

from pathlib import Path

from launch import PlatformSettings
from launch.settings import DEFAULT_DEVICE_MODEL

#: Short periods, so that a test of a lost node ends in seconds. Their relations are those of a live cluster.
QUICK_PERIODS = {
    "SLOT_SECONDS": "2",
    "SUSPECT_SECONDS": "6",
    "FENCE_SECONDS": "20",
    "FENCE_MARGIN_SECONDS": "1",
    "REPORT_SECONDS": "0.5",
    "LOG_LEVEL": "INFO",
}


def quick_settings(
    data: Path, *, first_port: int = 18000, first_worker_port: int = 22000
) -> PlatformSettings:
    """Return settings with two agents of four emulated slots each, on ports that no other platform uses.

    An iteration takes twice as long as by default: tests do not need many, and each one is computed.
    """
    return PlatformSettings(
        data=data,
        first_port=first_port,
        first_worker_port=first_worker_port,
        environment=QUICK_PERIODS,
        device_model={name: 2 * seconds for name, seconds in DEFAULT_DEVICE_MODEL.items()},
        # A warm worker for every GPU, since these tests are not about start times.
        warm_workers=4,
        examples=False,
    )
