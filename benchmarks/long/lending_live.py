"""Lending on a running platform during rising usage: servers missing with and without forecasts and
headroom.

    python -m benchmarks.long.lending_live [--quick] [--setting NAME ...] [--servers 16] [--json OUT]

Starts its own platform. Its inference cluster reports two weeks of the synthetic daily curve, from which the
network is trained in its own queue. The emulated inference scheduler, a separate process, serves the
fifteenth day from one o'clock until usage is highest, five minutes of the curve in one period of a few
seconds, while best-effort jobs train on servers on loan. The same hours run once with each setting. The
margin is that of `benchmarks/lending/forecaster.py`: what covers 99.9 % of the network's errors on the last
five days before, which were not in its training.

A reclaim counts as ahead if the last measured usage asked for no server back when it was ordered
(`ReclaimTiming`). A server is missing if the requests of some moment of a period need more servers than are
at home: the emulated scheduler's view, which is at least what the period's mean says.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.lending.figures import Figures, figures, moment_of, print_run
from benchmarks.lending.scene import NETWORK, Scene, Setting, emulator, start_training
from launch import Platform, PlatformSettings
from launch.agents import INFERENCE_CLUSTER
from launch.waiting import wait_until
from lending.core.lending_rule import HEADROOM_FRACTION, LendingRule
from lending.forecasting.sampling import SAMPLES_PER_DAY

SEED = 1
LIVE_DAY = 14
"""The day of the curve that is served; earlier days are for training."""
HOURS, QUICK_HOURS = (13.0, 20.2), (16.5, 20.2)
PERIOD_SECONDS = 5.0
SERVERS, OWNED_SERVERS = 16, 2
LAST_SAMPLE = "persistence"


SETTINGS: dict[str, Setting] = {
    "forecast, margin, headroom": Setting(NETWORK, HEADROOM_FRACTION, uses_margin=True),
    "headroom": Setting(LAST_SAMPLE, HEADROOM_FRACTION),
    "neither": Setting(LAST_SAMPLE, 0.0, uses_forecast=False),
    "forecast, margin": Setting(NETWORK, 0.0, uses_margin=True),
    "forecast, headroom": Setting(NETWORK, HEADROOM_FRACTION),
}
USUAL_SETTINGS = ("forecast, margin, headroom", "headroom", "neither")


def run(scene: Scene, setting: Setting, hours: tuple[float, float], margin: float) -> dict[str, Any]:
    """Serve these hours of the live day with one setting. Return its results, also by period."""
    first = round((LIVE_DAY + hours[0] / 24) * SAMPLES_PER_DAY)
    periods = round((hours[1] - hours[0]) / 24 * SAMPLES_PER_DAY)
    scene.operator.inference.change(
        INFERENCE_CLUSTER, forecaster=setting.forecaster, headroom_fraction=setting.headroom_fraction,
        forecast_margin_fraction=margin if setting.uses_margin else 0.0,
        hysteresis_fraction=setting.hysteresis_fraction,
        minimum_hold_seconds=setting.hold_periods * scene.period.total_seconds(),
    )  # fmt: skip
    scene.report_past(first)
    past_until = moment_of(scene.scheduler.inference.usage(INFERENCE_CLUSTER, limit=1)[0]["period_ends_at"])

    def served() -> list[dict[str, Any]]:
        newest = scene.scheduler.inference.usage(INFERENCE_CLUSTER, limit=periods + 5)
        return [dict(row) for row in reversed(newest) if moment_of(row["period_ends_at"]) > past_until]

    with emulator(scene, setting, LIVE_DAY * 24 + hours[0]):
        wait_until(
            lambda: len(served()) >= periods,
            timeout_seconds=60 + 2 * periods * scene.period.total_seconds(),
            interval_seconds=1.0,
        )
    samples = served()[:periods]
    if len(samples) < periods:
        raise SystemExit(f"only {len(samples)} of {periods} periods were reported")
    found = figures(scene, samples, LendingRule(scene.servers, setting.headroom_fraction))
    scene.bring_home()
    return {
        "setting": asdict(setting),
        "figures": asdict(found),
        "share_ahead": found.share_ahead,
        "periods": samples,
    }


def main() -> None:
    """Run every setting on one platform and print the results."""
    options = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    options.add_argument("--quick", action="store_true", help="fewer hours of the day")
    options.add_argument(
        "--setting", action="append", choices=list(SETTINGS), help="instead of the usual three"
    )
    options.add_argument("--servers", type=int, default=SERVERS, help="emulated inference servers")
    options.add_argument("--period-seconds", type=float, default=PERIOD_SECONDS)
    options.add_argument("--seed", type=int, default=SEED, help="of the curve's noise")
    options.add_argument("--json", type=Path, help="write the figures to this file")
    chosen = options.parse_args()
    data = Path(tempfile.mkdtemp(prefix="punctual-benchmark-"))
    platform = Platform(
        PlatformSettings(
            data=data, first_port=18600, first_worker_port=26000, agents=OWNED_SERVERS, slots=1,
            warm_workers=1,
            examples=False, inference_agents=chosen.servers, inference_usage=None,
            inference_period_seconds=chosen.period_seconds, worker_ports=100,
        )
    )  # fmt: skip
    try:
        platform.start()
        scene = Scene(platform, chosen.servers, chosen.period_seconds, chosen.seed)
        results = measure(scene, QUICK_HOURS if chosen.quick else HOURS, chosen.setting or USUAL_SETTINGS)
    finally:
        platform.stop()
        platform.remove_sockets()
        shutil.rmtree(data, ignore_errors=True)
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=1, default=str))


def measure(scene: Scene, hours: tuple[float, float], names: Sequence[str]) -> dict[str, Any]:
    """Run all settings, one after another over the same hours."""
    first = round((LIVE_DAY + hours[0] / 24) * SAMPLES_PER_DAY)
    scene.report_past(first)
    training, margin = scene.train(), scene.margin(first)
    print(
        f"{scene.servers} inference servers, periods of {scene.period.total_seconds():g} s, {scene.curve} "
        f"curve with seed {scene.seed} from {hours[0]:g} to {hours[1]:g} o'clock; the network's error "
        f"{training['mean_squared_error']:.5f}, of the last sample {training['persistence_error']:.5f}; "
        f"margin {margin:.3f}",
        flush=True,
    )
    jobs = start_training(scene.platform)
    runs = {}
    for name in names:
        runs[name] = run(scene, SETTINGS[name], hours, margin)
        print_run(name, Figures(**runs[name]["figures"]))
    progress = [(job.refresh().state, job.iterations_done) for job in jobs]
    print(f"jobs at the end: {progress}")
    return {
        "servers": scene.servers,
        "hours": hours,
        "margin": margin,
        "training": training,
        "runs": runs,
        "jobs": progress,
    }


if __name__ == "__main__":
    main()
