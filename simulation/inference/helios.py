"""Public demand curves of GPU clusters as stand-ins for an inference cluster.

No public trace says how many servers of an inference cluster could be lent. These are demands of *training*
clusters over time (Helios, Hu et al., SC 2021; Philly), used for their shape and their bursts and rescaled
into the range that Lyra reports. Every series states this in its ``source``. The files are not part of this
repository: `PUNCTUAL_TRACES` names their folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from simulation.inference.usage import PERIOD_SECONDS, FloatArray, UsageSeries, averaged
from simulation.workloads.errors import TraceError, quoted
from simulation.workloads.public_traces import VARIABLE, traces_folder
from simulation.workloads.trace_file import TraceFile, TraceRow

FOLDER = "traces/helios-usage"
HELIOS = "GitHub S-Lab-System-Group/HeliosArtifact, 5-minute means of its per-minute series for May 2020"
PHILLY = "GitHub msr-fiddle/philly-traces, nodes in use, as 10-minute means"

LOWEST, HIGHEST = 0.42, 0.95
"""Published range of inference usage (Lyra section 3.2.1)."""

LONGEST_GAP_SECONDS = 3600.0
"""Longest time for which a value holds until the next one; a longer gap ends the stretch that is used."""


@dataclass(frozen=True, slots=True)
class DemandCurve:
    """One public curve. ``file`` is its name in the folder, ``original`` where it was published."""

    name: str
    file: str
    original: str
    description: str


DEMAND_CURVES: dict[str, DemandCurve] = {
    curve.name: curve
    for curve in (
        DemandCurve("helios_vcvlY", "earth_vcvlY_5min.csv", HELIOS, "96 GPUs of a Helios cluster, May 2020"),
        DemandCurve("helios_vchbv", "earth_vchbv_5min.csv", HELIOS, "64 GPUs of Helios, very bursty"),
        DemandCurve("helios_vc6YE", "earth_vc6YE_5min.csv", HELIOS, "208 GPUs of Helios, nearly full"),
        DemandCurve("philly_nodes", "philly_nodes_10min.csv", PHILLY, "420 servers of Philly, ten weeks"),
    )
}


@dataclass(frozen=True, slots=True)
class _Columns:
    """Column names of a published table for GPUs (or servers) in use and in total."""

    used: str
    total: str

    def required(self) -> Mapping[str, tuple[str, ...]]:
        return {"time": ("time",), "used": (self.used,), "total": (self.total,)}


_LAYOUTS = (_Columns("running_gpu_num", "total_gpu_num"), _Columns("active", "total"))


def is_demand_curve(table: TraceFile) -> bool:
    """Return whether the table has one of the published layouts."""
    return _layout_of(table) is not None


def find_demand_curve(name: str) -> Path:
    """Return the file of a public demand curve. Raises TraceError, which names its source, if it is
    missing."""
    curve, folder = DEMAND_CURVES[name], traces_folder()
    if folder is None:
        where = f"{VARIABLE} is not set"
    else:
        for path in (folder / FOLDER / curve.file, folder / curve.file):
            if path.is_file():
                return path
        where = f"looked in {folder}"
    raise TraceError(
        f"usage {name} is not on this machine ({where}); it is public: {curve.original}. Put it in a folder "
        f"as {curve.file} and set {VARIABLE} to that folder, or give the file's path"
    )


def read_demand_curve(
    table: TraceFile, name: str, *, lowest: float = LOWEST, highest: float = HIGHEST
) -> UsageSeries:
    """Return a published demand curve as usage in five-minute means, scaled to ``lowest`` and ``highest``.

    The published times are local; they are kept as hours of the day. Rows without a value are left out, and
    of a curve with gaps of more than an hour the longest stretch between them is used.

    Raises TraceError with file, line and column for unreadable values and for times that do not ascend, and
    for a curve that never changes.
    """
    if not 0.0 <= lowest < highest <= 1.0:
        raise TraceError(f"usage {name} cannot be moved into {lowest:g} to {highest:g}")
    layout = _layout_of(table)
    if layout is None:
        raise TraceError(
            "a demand curve has columns time, running_gpu_num and total_gpu_num", path=table.path, line=1
        )
    rows = [row for row in table.named(layout.required()) if row.has("used")]
    if not rows:
        raise TraceError(f"column {layout.used} is empty", path=table.path)
    times = np.array([_seconds(row) for row in rows])
    _check_ascending(rows, times)
    stretch = _longest_stretch(times)
    times, used = times[stretch], np.array([_share(row) for row in rows])[stretch]
    last = float(times[-1] - times[-2]) if times.size > 1 else PERIOD_SECONDS
    demand = averaged(times, used, float(times[-1]) + last, PERIOD_SECONDS)
    if not demand.size or demand.max() - demand.min() <= 1e-12:
        raise TraceError("the demand never changes, so it cannot be rescaled", path=table.path)
    midnight = datetime.fromtimestamp(float(times[0]), UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return UsageSeries(
        name=name,
        source=_source(name, table.path, lowest, highest, whole=times.size == len(rows)),
        usage=_rescaled(demand, lowest, highest),
        start_seconds=float(times[0]) - midnight.timestamp(),
    )


def _layout_of(table: TraceFile) -> _Columns | None:
    wanted = (
        layout for layout in _LAYOUTS if {"time", layout.used, layout.total} <= set(table.header)
    )  # fmt: skip
    return next(wanted, None)


def _source(name: str, path: Path, lowest: float, highest: float, *, whole: bool) -> str:
    curve = DEMAND_CURVES.get(name)
    original = curve.original if curve is not None else path.name
    part = "" if whole else ", its longest stretch without a gap"
    return (
        f"stand-in for inference usage: demand of a training cluster ({original}{part}), rescaled into "
        f"{lowest:g} to {highest:g}"
    )


def _seconds(row: TraceRow) -> float:
    value = row.text("time")
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise row.error("time", f"{quoted(value)} is not a time such as 2020-05-01 00:05:00") from None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


def _share(row: TraceRow) -> float:
    return row.number("used", minimum=0) / row.number("total", above=0)


def _check_ascending(rows: list[TraceRow], times: FloatArray) -> None:
    steps = np.diff(times)
    backwards = np.flatnonzero(steps <= 0)
    if backwards.size:
        raise rows[backwards[0] + 1].error("time", "this time is not after that of the row before")


def _longest_stretch(times: FloatArray) -> slice:
    """Return the rows of the longest time without a gap; the first of several."""
    gaps = np.flatnonzero(np.diff(times) > LONGEST_GAP_SECONDS) + 1
    begin, end = np.append(0, gaps), np.append(gaps, times.size)
    longest = int(np.argmax(times[end - 1] - times[begin]))
    return slice(int(begin[longest]), int(end[longest]))


def _rescaled(demand: FloatArray, lowest: float, highest: float) -> FloatArray:
    share = (demand - demand.min()) / (demand.max() - demand.min())
    return np.clip(lowest + share * (highest - lowest), lowest, highest)
