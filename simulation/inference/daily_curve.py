"""A synthetic day of an inference cluster, with the published statistics (Lyra section 3.2.1).

Usage is lowest before dawn and highest for four hours at night. Its mean is 0.65, its peak 2.2 times its
trough, and its median change in five minutes about 2 points. Unpredictable bursts can be added.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from math import ceil, isfinite, sqrt
from statistics import NormalDist

import numpy as np

from simulation.inference.usage import DAY_SECONDS, PERIOD_SECONDS, FloatArray, UsageSeries
from simulation.workloads.errors import TraceError

TROUGH_HOUR, PEAK_HOUR, STEEPNESS = 5.0, 20.0, 1.84
"""Hour of the lowest usage, hour at which the plateau until midnight begins, and exponent of the slopes."""

FLOOR, CEILING = 0.40, 0.95
"""Bounds of usage with noise and bursts, unless the curve itself exceeds them."""
FLOOR_BELOW, CEILING_ABOVE = 0.02, 0.03
"""Margins of noise and bursts around a curve that does, the same as around the default curve."""

LONGEST_DAYS, MOST_BURSTS_PER_DAY = 3_660.0, 1_000.0


class UsageDraw(IntEnum):
    """Random stream of each draw. Only uniform numbers are drawn, since NumPy may change its other
    distributions."""

    NOISE = 0
    BURSTS = 1


@dataclass(frozen=True, slots=True)
class DailyCurve:
    """Parameters of the curve; the defaults give the published statistics.

    ``trough`` and ``swing``: lowest expected usage and the peak's excess over it. ``noise``: standard
    deviation of independent normal noise per sample. Bursts come at random, ``bursts_per_day`` on average:
    usage jumps by ``burst_height``, and the excess falls to 37 % every ``burst_minutes``; both vary by half,
    up or down.

    Raises TraceError for values that give no curve.
    """

    days: float = 15.0
    trough: float = 0.42
    swing: float = 0.50
    noise: float = 0.021
    bursts_per_day: float = 0.0
    burst_height: float = 0.12
    burst_minutes: float = 30.0

    def __post_init__(self) -> None:
        for name in ("days", "burst_minutes"):
            if not (getattr(self, name) > 0.0 and isfinite(getattr(self, name))):
                raise TraceError(f"{name} is {getattr(self, name):g}; it must be above 0")
        for name in ("trough", "swing", "noise", "bursts_per_day", "burst_height"):
            if not (getattr(self, name) >= 0.0 and isfinite(getattr(self, name))):
                raise TraceError(f"{name} is {getattr(self, name):g}; it must not be negative")
        if self.trough + self.swing > 1.0:
            raise TraceError(
                f"trough {self.trough:g} and swing {self.swing:g} are {self.trough + self.swing:g} in sum, "
                "which would be the highest usage expected; it must be at most 1"
            )
        for name, most in (("days", LONGEST_DAYS), ("bursts_per_day", MOST_BURSTS_PER_DAY)):
            if getattr(self, name) > most:
                raise TraceError(f"{name} is {getattr(self, name):g}; it must be at most {most:g}")

    def kept_within(self, usage: FloatArray) -> FloatArray:
        """Clip usage with noise and bursts to its bounds, which include all expected usage."""
        floor = FLOOR if self.trough >= FLOOR else max(0.0, self.trough - FLOOR_BELOW)
        highest = self.trough + self.swing
        ceiling = CEILING if highest <= CEILING else min(1.0, highest + CEILING_ABOVE)
        return np.clip(usage, floor, ceiling)

    def expected(self, seconds: FloatArray) -> FloatArray:
        """Return usage at these seconds of the simulation without noise and bursts, in their shape."""
        hour = (seconds % DAY_SECONDS) / 3600.0
        falling = np.maximum(0.0, (TROUGH_HOUR - hour) / TROUGH_HOUR)
        rising = np.clip((hour - TROUGH_HOUR) / (PEAK_HOUR - TROUGH_HOUR), 0.0, 1.0)
        return self.trough + self.swing * (falling**STEEPNESS + rising**STEEPNESS)

    def bursts(self, seconds: FloatArray, seed: int) -> FloatArray:
        """Return what bursts add at these ascending seconds, in their shape."""
        added = np.zeros(seconds.size)
        if not self.bursts_per_day:
            return added
        usual = self.bursts_per_day * (seconds[-1] / DAY_SECONDS + 1.0)
        draws = _uniforms(seed, UsageDraw.BURSTS, (ceil(usual + 10.0 * sqrt(usual)) + 10, 3))
        # In mean times between bursts; bursts after the end are dropped before the conversion to seconds.
        begin = np.cumsum(-np.log1p(-draws[:, 0]))
        draws = draws[begin < usual]
        begin = begin[begin < usual] * DAY_SECONDS / self.bursts_per_day
        height = self.burst_height * (0.5 + draws[:, 1])
        lasting = self.burst_minutes * 60.0 * (0.5 + draws[:, 2])
        for start, rise, fade in zip(begin.tolist(), height.tolist(), lasting.tolist(), strict=True):
            first = int(np.searchsorted(seconds, start))
            added[first:] += rise * np.exp((start - seconds[first:]) / fade)
        return added


@dataclass(frozen=True, slots=True)
class UsageProfile:
    """A named curve."""

    name: str
    description: str
    curve: DailyCurve


PROFILES: dict[str, UsageProfile] = {
    profile.name: profile
    for profile in (
        UsageProfile("daily", "one smooth day after another, with the published statistics", DailyCurve()),
        UsageProfile("bursty", "the same with six sudden bursts a day", DailyCurve(bursts_per_day=6.0)),
    )
}


def daily_usage(curve: DailyCurve, *, seed: int, name: str = "daily") -> UsageSeries:
    """Draw usage from a curve: the same seed gives the same samples, and fewer days a prefix of them."""
    count = max(1, ceil(curve.days * DAY_SECONDS / PERIOD_SECONDS - 1e-9))
    seconds = PERIOD_SECONDS * np.arange(count, dtype=np.float64)
    expected = curve.expected(seconds)
    noise = curve.noise * _normal(_uniforms(seed, UsageDraw.NOISE, (count,)))
    usage = curve.kept_within(expected + noise + curve.bursts(seconds, seed))
    return UsageSeries(
        name=name,
        source=f"synthetic daily curve {name}, seed {seed}, {curve.days:g} days, {curve.bursts_per_day:g} "
        f"bursts a day",
        usage=usage,
        # Bursts are not in the curve, so a curve with bursts has no exact expectation.
        expected=None if curve.bursts_per_day else expected,
    )


def _uniforms(seed: int, stream: UsageDraw, shape: tuple[int, ...]) -> FloatArray:
    source = np.random.default_rng(np.random.SeedSequence(entropy=seed, spawn_key=(int(stream),)))
    return source.random(shape)


def _normal(draws: FloatArray) -> FloatArray:
    quantile = NormalDist().inv_cdf
    # 0 may be drawn, and has no quantile.
    return np.array([quantile(max(draw, 1e-300)) for draw in draws.tolist()])
