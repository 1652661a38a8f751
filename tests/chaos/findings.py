"""The findings of a run: each invariant with its violations, and the report."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import indent
from typing import Any

from tests.chaos.requests import REQUESTS
from tests.chaos.scene import HONEST, MEBIBYTE, Scene
from tests.chaos.watching import BOUNDS, Seen

#: Correct functions: promises to them must be kept, whoever submitted them.
IN_ORDER = ("small_steps",)
#: Ends of a promise that its owner caused.
OWN_DOING = ("cancelled", "paused_by_owner")
LONGEST_PASS_SECONDS = 2.0

_PROMISES = """
    select j.id, j.name, u.username as owner, j.promise_outcome as outcome, j.void_reason, j.state, j.late,
           extract(epoch from j.deadline_at - j.finished_at) as slack_seconds
    from scheduling_job j join projects_user u on u.id = j.owner_id
    join scheduling_functionversion v on v.id = j.function_version_id
    join scheduling_function f on f.id = v.function_id
    where j.promise_outcome <> 'none' and f.name = any(%s)
        and not (j.hyperparameters @> '{"global_batch_size": 1000000000}')
"""
_TWO_OWNERS = """
    select gpu_id from scheduling_assignment where state in ('held', 'clearing')
    group by gpu_id having count(distinct job_id) > 1
"""
_BOTH_TRAINED = """
    select a.job_id, a.number, b.number as other from scheduling_generation a join scheduling_generation b
    on a.job_id = b.job_id and a.number < b.number and a.purpose = 'training' and b.purpose = 'training'
    where a.live_at is not null and b.live_at is not null
        and b.live_at < coalesce(a.retired_at, 'infinity'::timestamptz)
"""
_UNDECIDED = """
    select j.id from scheduling_job j join projects_user u on u.id = j.owner_id
    where u.username = %s and j.state in ('submitted', 'profiling')
"""
_FAILED_PASSES = "select message, detail, count, first_at from scheduling_incident where kind = 'pass_failed'"
_SET_ASIDE = """
    select j.id, j.name, i.message, i.first_at from scheduling_incident i
    join scheduling_job j on j.id = i.job_id
    join scheduling_functionversion v on v.id = j.function_version_id
    join scheduling_function f on f.id = v.function_id
    where f.name = any(%s)
"""
_LOOKED = "select text from scheduling_logchunk where text like '%%LOOKED %%'"
_NEWCOMERS = (
    "select count(*) as number from scheduling_job j join projects_user u on u.id = j.owner_id "
    "where u.username = %s"
)
_ASSIGNED = "select count(distinct gpu_id) as number from scheduling_assignment"
_TRAINED = (
    "select count(*) as number from scheduling_generation where purpose = 'training' and live_at is not null"
)


@dataclass
class Invariant:
    """One invariant. ``broken``: its violations in words; ``figure``: the number of checked items."""

    text: str
    figure: str
    broken: Sequence[str]

    @property
    def holds(self) -> bool:
        return not self.broken

    @classmethod
    def of(cls, text: str, count: int, what: str, broken: Sequence[str]) -> Invariant:
        """Return an invariant over ``count`` checked items; without items it does not hold."""
        return cls(text, f"{count} {what}", broken or ([] if count else [f"no {what} to look at"]))


@dataclass
class Report:
    """A run's result. ``timing``: the length of passes is judged too."""

    seed: int
    seconds: float
    invariants: list[Invariant] = field(default_factory=list)
    sent: Mapping[str, int] = field(default_factory=dict)
    answers: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    memory_bytes: Mapping[str, int] = field(default_factory=dict)
    jobs: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    longest_pass_seconds: float = 0.0
    highest_load: float = 0.0
    broken_connections: Mapping[str, int] = field(default_factory=dict)
    #: The folder with the evidence, if there is one.
    kept: Path | None = None

    @property
    def holds(self) -> bool:
        """Return whether no invariant broke."""
        return all(invariant.holds for invariant in self.invariants)

    def broken(self) -> list[str]:
        return [f"{invariant.text}: {what}" for invariant in self.invariants for what in invariant.broken]

    def lines(self) -> list[str]:
        """Return the report as readable lines."""
        out = [f"seed {self.seed}, {self.seconds:.0f} s of attacks", "", "submitted and done"]
        out += [f"  {number:5}  {what}" for what, number in sorted(self.sent.items())]
        out += ["", "requests, and how they were answered"]
        for attack, statuses in sorted(self.answers.items()):
            counts = ", ".join(f"{status} x {number}" for status, number in sorted(statuses.items()))
            out.append(f"  {attack:44} {counts}")
        if self.broken_connections:
            counts = ", ".join(f"{who} x {number}" for who, number in sorted(self.broken_connections.items()))
            out.append(f"  {'no answer, as the server was killed':44} {counts}")
        out += ["", "jobs at the end"]
        for who, states in sorted(self.jobs.items()):
            out.append(
                f"  {who:10} " + ", ".join(f"{state} {number}" for state, number in sorted(states.items()))
            )
        out += ["", "most memory of one process, and what it may hold"]
        for kind, held in sorted(self.memory_bytes.items()):
            out.append(f"  {kind:30} {held // MEBIBYTE:6} MiB  {BOUNDS[kind]:6} MiB")
        load = f"on {os.cpu_count()} cores at a load of up to {self.highest_load:.0f}"
        out += ["", f"longest pass of the planner: {self.longest_pass_seconds:.2f} s, {load}", ""]
        for invariant in self.invariants:
            out.append(f"{'holds ' if invariant.holds else 'BROKEN'}  {invariant.text} ({invariant.figure})")
            out += [indent(what, 10 * " ") for what in invariant.broken]
        if self.kept is not None:
            out += ["", f"what is known of the run is kept in {self.kept}"]
        return out

    def to_json(self) -> str:
        return json.dumps(
            {
                "seed": self.seed,
                "seconds": self.seconds,
                "holds": self.holds,
                "invariants": [vars(invariant) | {"holds": invariant.holds} for invariant in self.invariants],
                "sent": self.sent,
                "answers": self.answers,
                "memory_bytes": self.memory_bytes,
                "jobs": self.jobs,
                "longest_pass_seconds": self.longest_pass_seconds,
                "highest_load": self.highest_load,
                "broken_connections": self.broken_connections,
                "kept": None if self.kept is None else str(self.kept),
            },
            indent=1,
        )


def invariants(
    scene: Scene,
    seen: Seen,
    errors: Sequence[str],
    *,
    least_promises: int,
    timing: bool,
    killed: Mapping[str, int],
) -> list[Invariant]:
    """Check every invariant once all promises have ended. ``killed``: the number of kills by agent."""
    return [
        *_promises(scene, least_promises),
        _doors(scene),
        _refusals(scene),
        Invariant("the honest user is never turned away", f"{len(errors)} errors", list(errors)),
        *_planning(scene, seen, timing=timing),
        Invariant.of("no process beyond its memory", seen.looks, "looks", seen.beyond_their_memory()),
        _agents(scene, killed),
        *_rows(scene),
        _spies(scene),
    ]


def _promises(scene: Scene, least: int) -> list[Invariant]:
    promises = scene.rows(_PROMISES, list(IN_ORDER))
    broken = [
        f"{row['owner']}'s {row['name']} ({row['id']}): {row['outcome']} {row['void_reason']}, "
        f"{row['state']}, {row['slack_seconds'] if row['slack_seconds'] is not None else '?'} s before its "
        "deadline"
        for row in promises
        if not is_kept(row)
    ]
    honest = [row for row in promises if row["owner"] == HONEST]
    outcomes = ", ".join(
        f"{n} {what}" for what, n in sorted(Counter(row["outcome"] for row in promises).items())
    )
    too_few = (
        [] if len(honest) >= least else [f"only {len(honest)}, of {least} that there should be at least"]
    )
    return [
        Invariant("every promise to a function that is in order is kept", outcomes, broken),
        Invariant("the honest user is promised something", f"{len(honest)} promises", too_few),
    ]


def broken_promises(scene: Scene) -> list[dict[str, Any]]:
    """Return the rows of broken promises to correct functions."""
    return [row for row in scene.rows(_PROMISES, list(IN_ORDER)) if not is_kept(row)]


def is_kept(row: Mapping[str, Any]) -> bool:
    return row["outcome"] == "met" or (row["outcome"] == "void" and row["void_reason"] in OWN_DOING)


def _doors(scene: Scene) -> Invariant:
    faults = [
        f"{answer.attack}: {answer.method} {answer.path[:80]} answered {answer.status} {answer.content_type}"
        for answer in scene.ledger.faults()
    ]
    logs = scene.platform.folders.logs
    for name in ("web", "agent-api", "streams"):
        with (logs / f"{name}.log").open(errors="replace") as log:
            faults += [f"{name}.log: {line.strip()[:300]}" for line in log if "Internal Server Error" in line]
    return Invariant.of("no door has a fault", len(scene.ledger.answers), "answers", faults)


def _refusals(scene: Scene) -> Invariant:
    refused = {f"request: {attack.name}" for attack in REQUESTS if attack.refused}
    tried = [answer for answer in scene.ledger.answers if answer.attack in refused]
    taken = [
        f"{answer.attack}: {answer.method} {answer.path} answered {answer.status}"
        for answer in tried
        if answer.status < 400
    ]
    return Invariant.of("what must not be taken is refused", len(tried), "requests", taken)


def _planning(scene: Scene, seen: Seen, *, timing: bool) -> list[Invariant]:
    incidents = scene.rows(_FAILED_PASSES)
    failed = max(
        sum(row["count"] for row in incidents), int(seen.metrics["punctual_planner_failed_passes_total"])
    )
    why = [
        f"{row['message']} ({row['count']} times, first {row['first_at']:%H:%M:%S})\n{row['detail']}"
        for row in incidents
    ]
    aside = [
        f"{row['name']} ({row['id']}): {row['message']} ({row['first_at']:%H:%M:%S})"
        for row in scene.rows(_SET_ASIDE, list(IN_ORDER))
    ]
    undecided = scene.rows(_UNDECIDED, HONEST)
    checked = [
        Invariant(
            "no pass of the planner fails", f"{failed} failed", (why or [f"{failed} did"]) if failed else []
        ),
        Invariant("no job of a function that is in order is set aside", f"{len(aside)} were", aside),
        Invariant.of(
            "planning goes on: every newcomer of the honest user is decided",
            _number(scene, _NEWCOMERS, HONEST),
            "newcomers",
            [str(row["id"]) for row in undecided],
        ),
    ]
    if timing:
        longest = seen.longest_pass_seconds
        long = [f"one took {longest:.2f} s"] if longest > LONGEST_PASS_SECONDS else []
        checked.append(
            Invariant(f"no pass takes over {LONGEST_PASS_SECONDS:g} s", f"the longest {longest:.2f} s", long)
        )
    return checked


def _agents(scene: Scene, killed: Mapping[str, int]) -> Invariant:
    """An agent that ended without being killed was ended by user code."""
    ended = []
    logs = sorted(scene.platform.folders.logs.glob("agent-node-*.log"))
    for log in logs:
        starts = log.read_text(errors="replace").count(f"agent {log.stem.removeprefix('agent-')} runs")
        if starts > 1 + killed.get(log.stem, 0):
            ended.append(f"{log.stem} started {starts} times and was killed {killed.get(log.stem, 0)} times")
    return Invariant.of("no agent ends by itself", len(logs), "agents", ended)


def _rows(scene: Scene) -> list[Invariant]:
    twice = [f"GPU {row['gpu_id']}" for row in scene.rows(_TWO_OWNERS)]
    both = [f"{row['job_id']}: {row['number']} and {row['other']}" for row in scene.rows(_BOTH_TRAINED)]
    return [
        Invariant.of("no GPU has two owners", _number(scene, _ASSIGNED), "GPUs", twice),
        Invariant.of(
            "no two generations of a job train at once", _number(scene, _TRAINED), "generations", both
        ),
    ]


def _number(scene: Scene, sql: str, *parameters: str) -> int:
    (row,) = scene.rows(sql, *parameters)
    return int(row["number"])


def _spies(scene: Scene) -> Invariant:
    reports = [
        json.loads(line.partition("LOOKED ")[2])
        for row in scene.rows(_LOOKED)
        for line in row["text"].splitlines()
        if "LOOKED {" in line and line.endswith("}")
    ]
    opened = sorted({what for report in reports for what in report["opened"]})
    return Invariant.of("spies find nothing open", len(reports), "spies", opened)


def jobs_by_owner(scene: Scene) -> dict[str, dict[str, int]]:
    """Return the numbers of each person's jobs by how they ended."""
    counts: dict[str, dict[str, int]] = {}
    rows = scene.rows(
        "select u.username as owner, j.state, count(*) as number from scheduling_job j join projects_user u "
        "on u.id = j.owner_id group by 1, 2"
    )
    for row in rows:
        counts.setdefault(row["owner"], {})[row["state"]] = row["number"]
    return counts
