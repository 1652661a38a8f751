"""Servers that leave a simulated cluster at a known time: read from a file, or drawn by seed from a rate
(decision 0015)."""

from __future__ import annotations

import csv
from math import isfinite
from pathlib import Path

import numpy as np

from simulation.engine.asked.settings import KnownEnd, SimulationSettings
from simulation.engine.outside.failures import SECONDS_PER_DAY, end_of_trace
from simulation.engine.outside.happenings import Happening, HappeningKind
from simulation.workloads.workload import Workload

COLUMNS = ("server", "ends_at_seconds")
KNOWN_AT = "known_at_seconds"
NOTICE_SECONDS = 3600.0
"""Default time between the moment at which a drawn end becomes known and the end."""


def read_server_ends(
    given: str | None, notice_seconds: float | None, settings: SimulationSettings, workload: Workload
) -> tuple[KnownEnd, ...]:
    """Return ends as the command line gives them: a file, or a mean number of ends per server and day.

    Raises ValueError with one line that says what is wrong and what would be right.
    """
    if given is None:
        if notice_seconds is not None:
            raise ValueError("--server-end-notice-seconds is about servers that end: give --server-ends")
        return ()
    if len(settings.pools) > 1:
        raise ValueError("--server-ends: servers of one kind of GPU end, not of several pools")
    try:
        rate = float(given)
    except ValueError:
        if notice_seconds is not None:
            raise ValueError(
                f"--server-end-notice-seconds goes with a rate; a file says it in its column {KNOWN_AT}"
            ) from None
        return _from_file(Path(given), settings.pools[0].servers)
    if not isfinite(rate) or rate < 0:
        raise ValueError(f"--server-ends: a rate is a number of ends a server and day, not {given}")
    notice = NOTICE_SECONDS if notice_seconds is None else notice_seconds
    if not isfinite(notice) or notice < 0:
        raise ValueError(f"--server-end-notice-seconds must not be negative, not {notice:g}")
    return drawn_ends(rate, settings, workload, notice_seconds=notice)


def drawn_ends(
    ends_a_day: float,
    settings: SimulationSettings,
    workload: Workload,
    *,
    notice_seconds: float = NOTICE_SECONDS,
) -> tuple[KnownEnd, ...]:
    """Draw an exponentially distributed time by seed after which each server leaves for good; servers that
    would outlast the trace stay."""
    if ends_a_day <= 0 or not workload.jobs:
        return ()
    first, last = float(workload.submitted_at[0]), end_of_trace(workload)
    rng = np.random.default_rng(np.random.SeedSequence([settings.seed, 11]))
    after = rng.exponential(SECONDS_PER_DAY / ends_a_day, settings.pools[0].servers)
    return tuple(
        KnownEnd(server, first + seconds, max(first, first + seconds - notice_seconds))
        for server, seconds in enumerate(after.tolist())
        if first + seconds < last
    )


def end_happenings(settings: SimulationSettings, workload: Workload) -> list[Happening]:
    """Return the events of ends: they become known, and servers leave; none before the first submission."""
    first = float(workload.submitted_at[0]) if workload.jobs else 0.0
    return [
        happening
        for end in settings.known_ends
        for happening in (
            Happening(
                max(first, end.known_at), HappeningKind.SERVER_END_KNOWN, end.server, until=end.ends_at
            ),
            Happening(max(first, end.ends_at), HappeningKind.SERVER_LEAVES, end.server),
        )
    ]


def _from_file(path: Path, servers: int) -> tuple[KnownEnd, ...]:
    if not path.is_file():
        raise ValueError(f"--server-ends: {path} is neither a file nor a number of ends a server and day")
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or [])]
            if missing:
                raise ValueError(
                    f"{path}: no column {missing[0]}; a file of ends has {', '.join(COLUMNS)}, and "
                    f"{KNOWN_AT} if wanted"
                )
            ends = tuple(_row(path, line, row, servers) for line, row in enumerate(reader, start=2))
    except UnicodeDecodeError:
        raise ValueError(f"{path}: this is not a text file; a CSV is expected") from None
    doubled = {end.server for end in ends if sum(other.server == end.server for other in ends) > 1}
    if doubled:
        raise ValueError(f"{path}: server {min(doubled)} is there twice; a server ends once")
    return ends


def _row(path: Path, line: int, row: dict[str, str], servers: int) -> KnownEnd:
    where = f"{path}, line {line}"
    try:
        server, ends_at = int(row["server"]), float(row["ends_at_seconds"])
        known_at = float(row.get(KNOWN_AT) or 0.0)
    except (TypeError, ValueError):
        raise ValueError(f"{where}: server is a whole number, the times are numbers") from None
    if not 0 <= server < servers:
        raise ValueError(f"{where}: server lies between 0 and {servers - 1}, not {server}")
    if not (isfinite(ends_at) and 0 <= known_at <= ends_at):
        raise ValueError(f"{where}: {KNOWN_AT} is not negative, and not after ends_at_seconds")
    return KnownEnd(server, ends_at, known_at)
