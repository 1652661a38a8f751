"""Usage by name or path, as `--inference-usage` takes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path

from simulation.inference.daily_curve import PROFILES, DailyCurve, daily_usage
from simulation.inference.helios import DEMAND_CURVES, find_demand_curve, is_demand_curve, read_demand_curve
from simulation.inference.usage import UsageSeries
from simulation.inference.usage_file import read_usage_file
from simulation.workloads.errors import TraceError, listed, quoted
from simulation.workloads.trace_file import read_table

_CURVE_OPTIONS = tuple(field.name for field in fields(DailyCurve))
_RANGE_OPTIONS = ("lowest", "highest")


def available_usage() -> list[tuple[str, str]]:
    """Return the names that `read_usage` accepts, each with a description. Public curves may be missing."""
    return [
        *((profile.name, profile.description) for profile in PROFILES.values()),
        *((curve.name, f"stand-in: {curve.description}") for curve in DEMAND_CURVES.values()),
    ]


def read_usage(name_or_path: str, *, seed: int = 0) -> UsageSeries:
    """Return an inference cluster's usage as five-minute means.

    ``name_or_path`` is a synthetic profile with options (``daily``,
    ``bursty:days=3,bursts_per_day=10,seed=2``), a public demand curve (``helios_vcvlY``,
    ``philly_nodes:lowest=0.3,highest=0.9``), or the path of such a curve or of a CSV with the columns
    ``time_seconds, usage``. ``seed`` applies to synthetic profiles whose options give none.

    Raises TraceError of one line for anything that cannot be used.
    """
    name, options = _split(name_or_path)
    if name in PROFILES:
        own_seed = _whole(name, "seed", options.pop("seed")) if "seed" in options else seed
        numbers = _numbers(name, options, _CURVE_OPTIONS, ("seed",))
        try:
            curve = replace(PROFILES[name].curve, **numbers)
        except TraceError as error:
            raise TraceError(f"usage {name}: {error}") from None
        return daily_usage(curve, seed=own_seed, name=name)
    if name in DEMAND_CURVES:
        limits = _numbers(name, options, _RANGE_OPTIONS)
        return read_demand_curve(read_table(find_demand_curve(name)), name, **limits)
    path = Path(name)
    if not path.is_file() and path.name == name and not path.suffix:
        raise TraceError(
            f"no usage is called {quoted(name)}, and there is no such file; known are "
            f"{listed([known for known, _ in available_usage()])}"
        )
    table = read_table(path)
    if is_demand_curve(table):
        return read_demand_curve(table, path.stem, **_numbers(name, options, _RANGE_OPTIONS))
    _numbers(name, options, ())
    return read_usage_file(table)


def _split(text: str) -> tuple[str, dict[str, str]]:
    name, colon, rest = text.partition(":")
    if not colon or "=" not in rest:
        return text, {}
    options: dict[str, str] = {}
    for part in rest.split(","):
        key, _, value = (piece.strip() for piece in part.partition("="))
        if key in options:
            raise TraceError(f"usage {quoted(name)}: option {quoted(key)} is given twice")
        options[key] = value
    return name, options


def _numbers(
    name: str, options: Mapping[str, str], known: tuple[str, ...], others: tuple[str, ...] = ()
) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for key, value in options.items():
        if key not in known:
            raise TraceError(
                f"usage {quoted(name)}: unknown option {quoted(key)}; known are {listed([*known, *others])}"
            )
        try:
            numbers[key] = float(value)
        except ValueError:
            raise TraceError(
                f"usage {quoted(name)}: option {key} needs a number, not {quoted(value)}"
            ) from None
    return numbers


def _whole(name: str, key: str, value: str) -> int:
    if not value.isdecimal():
        raise TraceError(f"usage {quoted(name)}: option {key} needs a whole number, not {quoted(value)}")
    return int(value)
