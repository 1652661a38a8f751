"""Moving servers back and forth on a running platform: the published rule and the platform's, over the same
hours of usage.

    python -m benchmarks.long.lending_steadiness_live [--hours 8 13] [--curve bursty] [--servers 2] [--json
    OUT]

Starts its own platform with an inference cluster of ``--servers`` servers, as in `make demo`. Its usage comes
near a whole number of servers repeatedly in these hours. They are served once by the published rule, without
hysteresis and minimum time, and once by the platform's own; in both the last sample is the forecast, while
best-effort jobs train on servers on loan.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path

from benchmarks.lending.figures import Figures, print_run
from benchmarks.lending.lending_steadiness import headroom
from benchmarks.lending.scene import Scene, Setting, start_training
from benchmarks.long.lending_live import LAST_SAMPLE, LIVE_DAY, OWNED_SERVERS, PERIOD_SECONDS, SEED, run
from launch import Platform, PlatformSettings
from simulation.inference.catalogue import available_usage

HOURS = (8.0, 13.0)


def main() -> None:
    """Run both rules on one platform and print the results."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--hours", type=float, nargs=2, default=HOURS, help="of the day that is served")
    options.add_argument("--curve", default="bursty", choices=[name for name, _ in available_usage()])
    options.add_argument("--servers", type=int, default=2, help="emulated inference servers")
    options.add_argument("--period-seconds", type=float, default=PERIOD_SECONDS)
    options.add_argument("--seed", type=int, default=SEED, help="of the curve's noise")
    options.add_argument("--json", type=Path, help="write the figures to this file")
    chosen = options.parse_args()
    kept = headroom(chosen.servers)
    settings = {
        "as published": Setting(LAST_SAMPLE, kept, hysteresis_fraction=0.0, hold_periods=0),
        "as the platform": Setting(LAST_SAMPLE, kept),
    }
    data = Path(tempfile.mkdtemp(prefix="punctual-benchmark-"))
    platform = Platform(
        PlatformSettings(
            data=data, first_port=18800, first_worker_port=28500, agents=OWNED_SERVERS, slots=1,
            warm_workers=1,
            examples=False, inference_agents=chosen.servers, inference_usage=None,
            inference_period_seconds=chosen.period_seconds, worker_ports=100,
        )
    )  # fmt: skip
    runs = {}
    try:
        platform.start()
        scene = Scene(platform, chosen.servers, chosen.period_seconds, chosen.seed, chosen.curve)
        start_training(platform)
        for name, setting in settings.items():
            runs[name] = run(scene, setting, tuple(chosen.hours), margin=0.0)
            print_run(name, Figures(**runs[name]["figures"]))
    finally:
        platform.stop()
        platform.remove_sockets()
        shutil.rmtree(data, ignore_errors=True)
    if chosen.json:
        chosen.json.write_text(json.dumps({"live day": LIVE_DAY, "runs": runs}, indent=1, default=str))


if __name__ == "__main__":
    main()
