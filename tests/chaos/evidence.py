"""The evidence kept when an invariant broke: enough to find the cause afterwards, first of all of each broken
promise.

* finding.txt: the report;
* promises/: one page for each promise that was not kept: its row, and all that happened around it, in the
  order of time;
* snapshots/: the planner's questions while those jobs lived, as they were recorded (`unpack_snapshot`);
* rows/: the tables, a line of JSON for each row;
* logs/: of every service and both agents.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

#: Seconds before a job's submission and after its end that belong to its history.
AROUND = timedelta(seconds=20)
#: Planner passes that took longer appear in the history.
LONG_PASS_SECONDS = 1.0
#: Excludes logs of user code, bundles and credentials.
TABLES = (
    "cluster_cluster", "cluster_server", "cluster_gpu", "scheduling_job", "scheduling_jobevent",
    "scheduling_generation", "scheduling_assignment", "scheduling_worker", "scheduling_checkpoint",
    "scheduling_jobmetric", "scheduling_scalingcurve", "scheduling_curvelevel", "scheduling_offer",
    "scheduling_plannerpass", "scheduling_incident", "scheduling_outboxmessage",
)  # fmt: skip
#: Everything of the planner's answers except the question, which is in a file of its own.
_DECISIONS = """
    select id, kind, policy, epoch, planning_version, decided_at, trigger, summary,
        compute_seconds, pass_seconds
    from scheduling_decision order by id
"""
_QUESTIONS = (
    "select id, snapshot from scheduling_decision where snapshot is not null and decided_at between %s and %s"
)


@dataclass(frozen=True)
class Deed:
    """An act or observation of the harness: a killed process, the machine's load."""

    at: datetime
    text: str


@dataclass(frozen=True)
class Line:
    """One line of a history. ``about``: the job, or the actor."""

    at: datetime
    about: str
    text: str


def keep(
    rows: Callable[..., list[dict[str, Any]]],
    logs: Path,
    folder: Path,
    broken: Sequence[str],
    deeds: Sequence[Deed],
) -> None:
    """Write all evidence of the run to ``folder``.

    ``rows``: reads the platform's database. ``broken``: ids of the jobs whose promises were not kept.
    """
    shutil.copytree(logs, folder / "logs", dirs_exist_ok=True)
    tables = {table: rows(f"select * from {table} order by 1") for table in TABLES}
    tables["scheduling_decision"] = rows(_DECISIONS)
    for table, table_rows in tables.items():
        _write_rows(folder / "rows" / f"{table}.jsonl", table_rows)
    _write_rows(folder / "rows" / "deeds.jsonl", [vars(deed) for deed in deeds])
    for incident in tables["scheduling_incident"]:
        if incident["snapshot"] is not None:
            _write_question(folder, f"incident-{incident['id']}", incident["snapshot"])
    jobs = {row["id"]: row for row in tables["scheduling_job"]}
    for job_id in broken:
        job = jobs[job_id]
        begin, end = (
            job["submitted_at"] - AROUND,
            (job["finished_at"] or datetime.now().astimezone()) + AROUND,
        )
        for row in rows(_QUESTIONS, begin, end):
            _write_question(folder, f"decision-{row['id']}", row["snapshot"])
        story = sorted(
            (line for line in _story(tables, deeds, job) if begin <= line.at <= end), key=lambda line: line.at
        )
        page = folder / "promises" / f"{job['id']}.txt"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text("\n".join(_page(job, story)) + "\n")


def _write_rows(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as out:
        for row in rows:
            out.write(json.dumps(dict(row), default=_plain) + "\n")


def _plain(value: Any) -> str:
    if isinstance(value, (bytes, memoryview)):
        return f"{len(bytes(value))} bytes"
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _write_question(folder: Path, name: str, packed: bytes | memoryview) -> None:
    file = folder / "snapshots" / f"{name}.snapshot"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(bytes(packed))


def _page(job: Mapping[str, Any], story: Sequence[Line]) -> Iterator[str]:
    """Return the row, then the history in seconds since the job's submission, with the job's own lines
    marked."""
    yield f"{job['name']} ({job['id']}): {job['promise_outcome']} {job['void_reason']}, {job['state']}"
    yield ""
    for name, value in job.items():
        yield f"  {name:24} {json.dumps(value, default=_plain)}"
    yield ""
    yield f"seconds since it was submitted at {job['submitted_at']:%H:%M:%S.%f}; * is the job itself"
    if job["deadline_at"]:
        yield f"its deadline is at {(job['deadline_at'] - job['submitted_at']).total_seconds():.1f}"
    for line in story:
        seconds = (line.at - job["submitted_at"]).total_seconds()
        yield f"{seconds:9.2f} {'*' if line.about == job['id'] else ' '} {line.about:14} {line.text}"


def _story(
    tables: Mapping[str, Sequence[Mapping[str, Any]]], deeds: Sequence[Deed], job: Mapping[str, Any]
) -> Iterator[Line]:
    for deed in deeds:
        yield Line(deed.at, "harness", deed.text)
    for event in tables["scheduling_jobevent"]:
        yield Line(event["happened_at"], event["job_id"], f"{event['kind']}: {event['message']}")
    yield from _generations(tables)
    for worker in tables["scheduling_worker"]:
        if worker["exit"]:
            yield Line(worker["changed_at"], "worker", f"{worker['key']} {worker['phase']} {worker['exit']}")
    for checkpoint in tables["scheduling_checkpoint"]:
        text = (
            f"checkpoint of iteration {checkpoint['iteration']} ({checkpoint['reason']}, "
            f"{checkpoint['store_seconds']:.2f} s)"
        )
        yield Line(checkpoint["stored_at"], checkpoint["job_id"], text)
    for metric in tables["scheduling_jobmetric"]:
        if metric["job_id"] == job["id"]:
            text = (
                f"iteration {metric['iteration']}, {metric['iterations_per_second']:.2f} it/s on "
                f"{metric['gpus']} GPUs"
            )
            yield Line(metric["measured_at"], job["id"], text)
    for decision in tables["scheduling_decision"]:
        yield from _decision(decision, job["id"])
    for planner_pass in tables["scheduling_plannerpass"]:
        if planner_pass["seconds"] > LONG_PASS_SECONDS:
            end = "failed" if planner_pass["failed"] else "ended"
            steps = ", ".join(
                f"{name} {taken:.2f}" for name, taken in planner_pass["seconds_by_step"].items()
            )
            text = (
                f"a pass of {planner_pass['seconds']:.2f} s {end}, "
                f"overtaken {planner_pass['overtaken']} times: {steps}"
            )
            yield Line(planner_pass["ended_at"], "planner", text)
    for incident in tables["scheduling_incident"]:
        yield Line(
            incident["first_at"],
            "incident",
            f"{incident['kind']} x {incident['count']}: {incident['message']}",
        )


def _generations(tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[Line]:
    gpus: dict[int, list[str]] = {}
    for assignment in tables["scheduling_assignment"]:
        gpus.setdefault(assignment["generation_id"], []).append(str(assignment["gpu_id"]))
    for generation in tables["scheduling_generation"]:
        name = (
            f"generation {generation['number']} ({generation['purpose']}, "
            f"GPUs {' '.join(gpus.get(generation['id'], ()))})"
        )
        for moment in ("created", "held", "ready", "live", "retired"):
            if generation[f"{moment}_at"] is not None:
                why = {"created": generation["reason"], "retired": generation["retire_reason"]}.get(
                    moment, ""
                )
                yield Line(
                    generation[f"{moment}_at"], generation["job_id"], f"{name} {moment} {why}".rstrip()
                )


def _decision(decision: Mapping[str, Any], job_id: str) -> Iterator[Line]:
    summary = decision["summary"]
    seconds = decision["pass_seconds"]
    described = (
        f"{decision['id']} {decision['kind']}, epoch {decision['epoch']}, by {decision['trigger'] or '?'}, "
        f"computed in {decision['compute_seconds']:.2f} s, pass "
        f"{'?' if seconds is None else f'{seconds:.2f}'} s"
    )
    risks = summary.get("at_risk", [])
    yield Line(
        decision["decided_at"], "planner", described + (f", at risk: {' '.join(risks)}" if risks else "")
    )
    for change in summary.get("changes", []):
        text = f"{change['kind']} {change['gpus_before']} to {change['gpus_after']}: {change['reason']}"
        yield Line(decision["decided_at"], change["job"], f"  changes: {text}")
    for verdict in summary.get("verdicts", []):
        if verdict["job"] == job_id:
            yield Line(decision["decided_at"], job_id, f"  verdict: {verdict['reason']}")
