"""Measured costs of copies of recovery points, from `benchmarks/runtime/checkpoint_traffic.py`.

They were measured on emulated links at a small scale, while the published values are of 16 servers: they are
shown beside the model's rows, never as one of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recovery.traffic.modes import TrafficMode
from research.figure import Table

FILE = Path(__file__).with_name("measured.json")


def measured(file: Path = FILE) -> Mapping[str, Any]:
    """Return the results by setting; empty if nothing was measured. Raises ValueError for another file."""
    if not file.exists():
        return {}
    found = json.loads(file.read_text())
    if not isinstance(found, dict):
        raise ValueError(f"{file} does not hold what benchmarks/runtime/checkpoint_traffic.py writes")
    return found


def measured_tables(found: Mapping[str, Any]) -> tuple[Table, ...]:
    """Return a table with one row per setting and way to send copies; none if nothing was measured."""
    return (_table(found),) if found else ()


def _table(found: Mapping[str, Any]) -> Table:
    values = tuple(
        {
            "setting": name,
            "mode": row["mode"],
            "iteration_seconds": row["iteration_seconds"],
            "over_none": row["over_none"],
            "points_per_iteration": row["points_per_iteration"],
            "network_alone": _network_alone(result) if row["mode"] == TrafficMode.GEMINI.value else None,
            "load": result["load"],
            "rounds": result["rounds"],
        }
        for name, result in found.items()
        for row in result["rows"]
    )
    machines = ", ".join(sorted({result["machine"] for result in found.values()}))
    return Table(
        "Measured on emulated links",
        "The example GPT on two emulated servers, whose copies and gradients really share the emulated "
        "links; median over rounds, each way against none in the same round. Copies alone: iterations "
        "with copies on their way against those without, as the runtime measures them; the rest is what it "
        f"takes to write points. Taken on {machines}; the load is that of the machine when the first run "
        "began, and above its number of cores others were computing too.",
        ("Setting", "Way", "Iteration", "Over none", "Copies alone", "Points for each iteration", "Load"),
        tuple(
            (
                one["setting"],
                one["mode"],
                f"{one['iteration_seconds'] * 1000:.0f} ms",
                f"{one['over_none']:+.1%}",
                "–" if one["network_alone"] is None else f"{one['network_alone']:+.1%}",
                "–" if one["points_per_iteration"] is None else f"{one['points_per_iteration']:.2f}",
                f"{one['load']:.0f}",
            )
            for one in values
        ),
        values,
    )


def _network_alone(result: Mapping[str, Any]) -> float | None:
    """Return the share by which iterations are longer during copies, as the runtime reported it last."""
    plan = result.get("plan") or {}
    without, copying = plan.get("without_seconds"), plan.get("with_seconds")
    return copying / without - 1.0 if without and copying is not None else None
