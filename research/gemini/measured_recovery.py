"""Measured cost of a lost server, from the results of `benchmarks/long/recovery_time.py`.

It was measured on four emulated servers, while the published values are of 16 machines with 128 GPUs: it is
shown beside the model's rows, never as one of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from research.figure import Table

FILE = Path(__file__).with_name("measured_recovery.json")
WAYS = {"memory": "memory of peers", "storage": "storage alone"}
PHASES = ("detection", "fence", "resources", "start", "load", "lost_work", "wasted")
HOW_OFTEN = ("checkpoint", "period")


def measured_recovery(file: Path = FILE) -> Mapping[str, Any]:
    """Return setting and losses by the way the state is kept; empty if nothing was measured.

    Raises:
        ValueError: the file is not the benchmark's.
    """
    if not file.exists():
        return {}
    found = json.loads(file.read_text())
    if not isinstance(found, dict) or "losses" not in found:
        raise ValueError(f"{file} does not hold what benchmarks/long/recovery_time.py writes")
    return found


def recovery_tables(found: Mapping[str, Any]) -> tuple[Table, ...]:
    """Return tables of a lost server's phases, in memory and in storage, and their ratios."""
    text = (
        f"Medians of {{losses}} lost servers of four, one of which dies with its workers and its store; "
        f"{_setting(found)} Wasted time is loading and lost work; detection, the fence and the start of "
        "workers are the same for both."
    )
    return _tables(found, "Measured: a lost server", text, PHASES)


def frequency_tables(found: Mapping[str, Any]) -> tuple[Table, ...]:
    """Return tables of checkpoint times and periods, in memory and in storage."""
    text = f"Jobs of the same runs as under recovery time; {_setting(found)}"
    return _tables(found, "Measured: a checkpoint, and from one to the next", text, HOW_OFTEN)


def _setting(found: Mapping[str, Any]) -> str:
    if not found:
        return ""
    rate = found["network_bytes_per_second"] / 1e6
    return (
        f"{found['megabytes']} MB of state, at most {found['share']:g} of the time for points, links that "
        f"carry {rate:.0f} MB/s, storage a twentieth of that, iterations of "
        f"{found['iteration_seconds']:g} s; {found['machine']}, load {found['load']:.0f}."
    )


def _tables(found: Mapping[str, Any], title: str, text: str, names: Sequence[str]) -> tuple[Table, ...]:
    losses = found.get("losses", {})
    if any(not losses.get(way) for way in WAYS):
        return ()
    medians = {way: {name: median(one[name] for one in losses[way]) for name in names} for way in WAYS}
    values = tuple({"phase": name, **{way: medians[way][name] for way in WAYS}} for name in names)
    return (
        Table(
            title,
            text.format(losses=min(len(losses[way]) for way in WAYS)),
            ("", *WAYS.values(), "Storage over memory"),
            tuple(
                (
                    name.replace("_", " "),
                    *(f"{medians[way][name]:.1f} s" for way in WAYS),
                    f"{medians['storage'][name] / medians['memory'][name]:.1f}"
                    if medians["memory"][name]
                    else "–",
                )
                for name in names
            ),
            values,
        ),
    )
