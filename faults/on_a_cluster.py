"""Fault injection on an operator's own cluster: faults possible from the control plane's host, and the
checks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg2

from faults.invariants import Violation
from faults.processes import NotRunningError, find
from faults.reading import Rows, in_the_rows, jobs_of, reader
from faults.schedule import Part, Target
from launch.folders import Folders
from launch.state import read_state

#: Parts that are processes. An operator's links and disks are not touched.
PROCESSES = frozenset(Part) - {Part.CONTROL_LINK, Part.PEER_LINK, Part.DISK, Part.MEMORY, Part.CLOCK}
LOOK_SECONDS = 1.0

_UNFINISHED = """
    select id from scheduling_job
    where state in ('submitted', 'profiling', 'admitted', 'running', 'suspended')
"""
_UP = "select name from cluster_server where state = 'up'"
_CLUSTERS = "select name from cluster_cluster order by name"


class ChaosRefusedError(RuntimeError):
    """The faults cannot or must not be injected; the message says why, and what would be right."""


@dataclass(frozen=True)
class Before:
    """State before any fault. ``jobs``: the unfinished ones. ``servers``: those that were up."""

    jobs: Mapping[str, Mapping[str, Any]]
    servers: frozenset[str]


def clusters(rows: Rows) -> list[str]:
    """Return the names of the platform's clusters."""
    return [row["name"] for row in rows(_CLUSTERS)]


def targets(folders: Folders, parts: Iterable[str]) -> list[Target]:
    """Return the processes on this machine that are possible targets, of these parts only; all if none is
    named.

    Raises ChaosRefusedError for an unknown part, and if no platform runs on these folders.
    """
    wanted = set(parts)
    unknown = sorted(wanted - {part.value for part in PROCESSES})
    if unknown:
        known = ", ".join(sorted(part.value for part in PROCESSES))
        raise ChaosRefusedError(f"there is no part {unknown[0]!r}: take some of {known}")
    try:
        found = find(folders)
    except NotRunningError as error:
        raise ChaosRefusedError(
            f"{error}: name the folder of a platform that `make run` started on this machine with --data"
        ) from None
    except OSError as error:
        raise ChaosRefusedError(
            f"{folders.data} cannot be read ({error.strerror}): name a platform's folder with --data, as the "
            "user that the platform runs as"
        ) from None
    return [target for target in found if not wanted or target.part.value in wanted]


def database(folders: Folders) -> Rows:
    """Return a reader of the database of the platform that runs on these folders, and of no other.

    Raises ChaosRefusedError if none runs.
    """
    state = read_state(folders)
    if state is None:
        raise ChaosRefusedError(f"no platform runs on {folders.data}")
    return reader(state["database_url"])


def confirm(name: str | None, rows: Rows) -> None:
    """Check that ``name`` is that of the platform's only cluster. Raises ChaosRefusedError otherwise."""
    found = clusters(rows)
    if len(found) != 1:
        raise ChaosRefusedError(
            f"this platform has {len(found)} clusters, and processes of its control plane serve all of them"
        )
    if name != found[0]:
        raise ChaosRefusedError(
            f"processes of cluster {found[0]!r} would be killed and frozen, with the jobs that train there: "
            f"say --yes-i-mean-this-cluster {found[0]}, or --dry-run to see the schedule"
        )


def look(rows: Rows) -> Before:
    """Return the current state."""
    unfinished = [row["id"] for row in rows(_UNFINISHED)]
    return Before(
        {row["id"]: row for row in jobs_of(rows, unfinished)},
        frozenset(row["name"] for row in rows(_UP)),
    )


def lost(before: Before, now: Sequence[Mapping[str, Any]]) -> list[Violation]:
    """Return jobs that were unfinished and have failed since, or were deleted. Jobs that people cancelled do
    not count."""
    there = {row["id"]: row for row in now}
    found = []
    for job, row in before.jobs.items():
        if job not in there:
            found.append(Violation("no job lost", f"{row['name']} ({job}) is not there any more"))
        elif there[job]["state"] == "failed":
            found.append(Violation("no job lost", f"{row['name']} ({job}) failed: {there[job]['failure']}"))
    return found


def restless(folders: Folders, rows: Rows, before: Before) -> list[str]:
    """Return what has not recovered yet: servers, processes, and running jobs that made no progress since."""
    state = read_state(folders)
    if state is None:
        return ["the platform has ended"]
    found = [f"{name} does not run" for name, process in state["processes"].items() if process["pid"] is None]
    try:
        up = {row["name"] for row in rows(_UP)}
        found += [f"server {name} is not up" for name in sorted(before.servers - up)]
        for row in jobs_of(rows, list(before.jobs)):
            was = before.jobs[row["id"]]
            trained = was["state"] == "running"
            if trained and row["state"] == "running" and row["iterations_done"] <= was["iterations_done"]:
                found.append(f"job {row['id']} does not get further than {was['iterations_done']}")
    except psycopg2.Error as error:
        found.append(f"the database does not answer: {error}")
    return found


def judge(
    folders: Folders,
    rows: Rows,
    before: Before,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> list[Violation]:
    """Wait until everything has recovered, for at most ``seconds``, and return the violations."""
    ends_at = clock() + seconds
    while (missing := restless(folders, rows, before)) and clock() <= ends_at:
        pause(LOOK_SECONDS)
    at_the_end = [Violation("all is calm again", what) for what in missing]
    jobs = list(before.jobs)
    return [*at_the_end, *lost(before, jobs_of(rows, jobs)), *in_the_rows(rows, jobs)]
