"""Forecasts of inference usage: errors beside persistence, cost of training, and savings by forecasting.

    python -m benchmarks.lending.forecaster [--seeds 4] [--curve daily]
        [--other bursty --other helios_vcvlY ...] [--servers 520] [--rolling ridge ...] [--json OUT]

Errors are mean squared errors over the last five days of a curve, one period ahead, after training on the
days before. Training and forecasting are CPU time over ridge's. The second table follows the lending rule
over the whole curve with forecasts made as they would be live, fitted anew every day: reclaims that began
before usage rose, and periods in which the inference cluster was short of servers.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from typing import Any

import numpy as np

from lending.core.lending_rule import LendingRule
from lending.core.replay import follow
from lending.forecasting.errors import ForecasterError
from lending.forecasting.evaluation import forecast_errors, margin_covering, reclaims_ahead
from lending.forecasting.forecaster import Forecaster
from lending.forecasting.registry import FORECASTERS, make_forecaster
from lending.forecasting.rolling import rolling_forecasts
from lending.forecasting.sampling import SAMPLES_PER_DAY
from simulation.inference.catalogue import read_usage
from simulation.inference.usage import FloatArray, UsageSeries
from simulation.workloads.errors import TraceError

COVERED = 0.999
"""Share of periods that the margin in the last column must cover."""


def cpu_seconds(series: UsageSeries, name: str) -> tuple[float, float]:
    """Return CPU seconds of one fit to all but five days, and of one forecast."""
    forecaster: Forecaster = make_forecaster(name)
    began = time.process_time()
    forecaster.fit(series.usage[: -5 * SAMPLES_PER_DAY])
    fitted = time.process_time() - began
    repetitions = 200
    began = time.process_time()
    for first in range(repetitions):
        forecaster.forecast(series.usage[first : first + forecaster.window])
    return fitted, (time.process_time() - began) / repetitions


def accuracy(curve: str, seeds: int) -> list[dict[str, Any]]:
    """Print and return errors by forecaster, one row per seed."""
    print(f"mean squared error x 100,000 on {curve}, and as a share of persistence's")
    rows: list[dict[str, Any]] = []
    for seed in range(seeds):
        series = read_usage(curve, seed=seed)
        found = forecast_errors(
            series.usage, [make_forecaster(name) for name in FORECASTERS], expected=series.expected
        )
        errors = "  ".join(
            f"{name} {error * 1e5:6.1f} ({found.ratio_to_persistence(name):4.2f})"
            for name, error in found.errors.items()
        )
        print(f"  seed {seed}: {errors}", flush=True)
        rows.append({"curve": curve, "seed": seed, "errors": dict(found.errors)})
        if series.expected is None:
            break  # a public curve has no seed
    return rows


def costs(curve: str) -> dict[str, Any]:
    """Print and return the cost of fits and forecasts beside ridge's."""
    series = read_usage(curve)
    seconds = {name: cpu_seconds(series, name) for name in FORECASTERS}
    for name, (fit, forecast) in seconds.items():
        print(
            f"  {name:12s} fit {fit:8.4f} s CPU ({fit / seconds['ridge'][0]:8.1f} x ridge), forecast "
            f"{forecast * 1e6:7.1f} us ({forecast / seconds['ridge'][1]:6.1f} x ridge)"
        )
    return {name: {"fit_seconds": fit, "forecast_seconds": one} for name, (fit, one) in seconds.items()}


def live_forecasts(series: UsageSeries, name: str) -> FloatArray:
    """Return forecasts as they would have been made, or the curve without noise for ``perfect``."""
    if name == "perfect":
        if series.expected is None:
            raise ForecasterError(f"nobody can forecast {series.name} perfectly")
        return np.append(series.expected[1:], np.nan)
    return rolling_forecasts(series.usage, make_forecaster(name))


def lending(curve: str, names: list[str], servers: int) -> list[dict[str, Any]]:
    """Print and return the results of lending by each forecaster."""
    series, rows = read_usage(curve), []
    print(f"lending of {servers} servers over {series.usage.size} periods of {curve}; periods short (worst)")
    for name in names:
        forecasts = live_forecasts(series, name)
        plain = reclaims_ahead(LendingRule(servers), series.usage, forecasts)
        known, came = forecasts[SAMPLES_PER_DAY:-1], series.usage[SAMPLES_PER_DAY + 1 :]
        margin = margin_covering(known, came, COVERED)
        cautious = LendingRule(servers, forecast_margin_fraction=margin)
        covered = reclaims_ahead(cautious, series.usage, forecasts)
        short = "  ".join(
            f"{title} {shortfall.periods:5d} ({shortfall.servers_at_worst})"
            for title, shortfall in (
                ("both", plain.with_forecast_and_headroom),
                ("forecast", plain.with_forecast_only),
                ("headroom", plain.with_headroom_only),
                ("neither", plain.with_neither),
                (f"both and margin {margin:.3f}", covered.with_forecast_and_headroom),
            )
        )
        error = float(np.mean((known - came) ** 2))
        lent = [
            float(follow(rule, series.usage, forecasts).on_loan.mean())
            for rule in (LendingRule(servers), cautious)
        ]
        print(
            f"  {name:12s} error {error * 1e5:6.1f}; reclaims ahead {plain.share_ahead or 0.0:6.1%}, with "
            f"margin "
            f"{covered.share_ahead or 0.0:6.1%}; lent {lent[0]:.0f}, with margin "
            f"{lent[1]:.0f}\n{'':15s}short: {short}",
            flush=True,
        )
        rows.append(
            {"curve": curve, "forecaster": name, "error": error, "margin": margin, "lent": lent}
            | {"plain": asdict(plain), "with_margin": asdict(covered)}
        )
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Print the tables; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--curve", default="daily", help="the curve of the acceptance")
    parser.add_argument(
        "--other", action="append", default=[], help="further curves, as read_usage takes them"
    )
    parser.add_argument("--servers", type=int, default=520)
    parser.add_argument("--rolling", nargs="*", default=["persistence", "ridge", "perfect"])
    parser.add_argument("--json", metavar="OUT", help="also write the figures to this file")
    options = parser.parse_args(arguments)
    try:
        results = {
            "accuracy": [
                row for curve in (options.curve, *options.other) for row in accuracy(curve, options.seeds)
            ],
            "costs": costs(options.curve),
            "lending": lending(options.curve, options.rolling, options.servers),
        }
    except (TraceError, ForecasterError) as error:
        print(f"cannot measure: {error}", file=sys.stderr)
        return 2
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump(results, out, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
