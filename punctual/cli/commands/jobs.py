"""`jobs`, `job`, `logs`, `events`, `cancel`, `pause`, `resume`, `deadline`: look at jobs and steer them."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Annotated, Any

import typer
from rich.live import Live

from punctual.cli import options, output, session
from punctual.cli.communication import say_communication
from punctual.cli.experts import say_experts
from punctual.cli.follow import INTERRUPTED, ending, event_line
from punctual.cli.verdicts import say_verdict
from punctual.client import Job
from punctual.client.durations import parse_time
from punctual.client.models import LogChunk
from punctual.client.watching import watch
from punctual.errors import ApiError, ConflictError, InvalidInputError, NotAllowedError, NotFoundError

_SECONDS_BETWEEN_TABLES = 2.0
#: Columns that a narrow terminal leaves out, the first one first.
_OPTIONAL_COLUMNS = ("START", "CLASS", "FINISH", "SLACK", "PROMISE")
_COLUMNS = ("ID", "NAME", "STATE", "CLASS", "DONE", "GPUS", "DEADLINE", "START", "FINISH", "SLACK", "PROMISE")


def jobs(
    state: Annotated[
        list[str] | None, typer.Option("--state", help="Only jobs in this state (repeatable).")
    ] = None,
    project: options.Project = None,
    service_class: options.ClassOption = None,
    owner: Annotated[str | None, typer.Option("--owner", help="Only jobs of this person.")] = None,
    function: Annotated[str | None, typer.Option("--function", help="Only jobs of this function.")] = None,
    labels: Annotated[
        list[str] | None,
        typer.Option("--label", "-l", metavar="KEY=VALUE", help="Only jobs with this label (repeatable)."),
    ] = None,
    search: Annotated[
        str | None, typer.Option("--search", help="Search for this text in names and ids.")
    ] = None,
    promised: Annotated[
        bool | None, typer.Option("--promised/--not-promised", help="Only jobs with or without a promise.")
    ] = None,
    at_risk: Annotated[
        bool | None,
        typer.Option("--at-risk/--not-at-risk", help="Only jobs that are or are not at risk of being late."),
    ] = None,
    submitted_after: Annotated[
        str | None, typer.Option("--submitted-after", metavar="TIME", help="Such as 2030-01-31T14:30Z.")
    ] = None,
    deadline_before: Annotated[
        str | None, typer.Option("--deadline-before", metavar="TIME", help="Such as 2030-01-31T14:30Z.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", help="Maximum number of jobs.", min=1, max=10_000)] = 50,
    watching: options.Watch = False,
    as_json: options.Json = False,
) -> None:
    """List jobs, newest first, with their planned start, planned finish and slack."""
    filters = {
        "project": project,
        "service_class": service_class.value if service_class else None,
        "owner": owner,
        "function": function,
        "search": search,
        "promised": _flag(promised),
        "at_risk": _flag(at_risk),
        "submitted_after": parse_time(submitted_after).isoformat() if submitted_after else None,
        "deadline_before": parse_time(deadline_before).isoformat() if deadline_before else None,
    }
    wanted = options.pairs(labels, "--label")
    with session.client() as client:

        def ask() -> list[Job]:
            return list(client.jobs(state=state or (), labels=wanted, limit=limit, **filters))

        if watching:
            _watch_table(ask, as_json)
        elif as_json:
            output.print_json([job.raw for job in ask()])
        else:
            output.print_table(
                _COLUMNS,
                [_row(job) for job in ask()],
                right=("DONE", "GPUS"),
                optional=_OPTIONAL_COLUMNS,
                empty="No job matches."
                if wanted or state or any(value is not None for value in filters.values())
                else "No jobs. Submit one: punctual submit train.py --deadline 20m --batch-size 256 "
                "--iterations 500",
            )


def _flag(value: bool | None) -> str | None:
    return None if value is None else str(value).lower()


def _row(job: Job) -> Sequence[Any]:
    at_risk = job.at_risk and not job.late and not job.finished
    flags = (("at risk", at_risk), ("late", job.late), ("not finite", bool(job.warning)))
    marks = [mark for mark, shown in flags if shown]
    finish = job.finished_at or job.planned_finish_at if job.state != "declined" else None
    return (
        job.id,
        job.name,
        output.state_text("paused" if job.paused_by_owner and not job.finished else job.state, *marks),
        job.service_class,
        f"{100 * job.progress:.0f}%",
        f"{job.gpus}" if job.gpus else "-",
        output.time_text(job.deadline_at),
        output.time_text(job.started_at or job.planned_start_at),
        output.time_text(finish),
        output.slack_text(_slack_seconds(job)),
        "-" if job.promise_outcome == "none" else job.promise_outcome,
    )


def _slack_seconds(job: Job) -> float | None:
    """Return the job's slack; None for a job that ended without a result."""
    return None if job.finished and not job.succeeded else job.slack_seconds


def _watch_table(ask: Any, as_json: bool) -> None:
    live = (
        Live(console=output.console(), auto_refresh=False) if output.is_terminal() and not as_json else None
    )
    try:
        with live if live is not None else nullcontext():
            while True:
                found = ask()
                rows = output.table(
                    _COLUMNS,
                    [_row(job) for job in found],
                    right=("DONE", "GPUS"),
                    optional=_OPTIONAL_COLUMNS,
                )
                if as_json:
                    output.print_json_line([job.raw for job in found])
                elif live is not None:
                    live.update(rows, refresh=True)
                else:
                    output.console().print(rows)
                time.sleep(_SECONDS_BETWEEN_TABLES)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def job(
    job_id: options.JobId,
    communication: Annotated[
        bool, typer.Option("--communication", help="Show how its gradients are sent, and why.")
    ] = False,
    experts: Annotated[
        bool, typer.Option("--experts", help="Show how its experts are used, and where they live.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Show one job: verdict, plan, progress, and what happened last."""
    with session.client() as client:
        found = client.job(job_id)
        if communication:
            say_communication(found.communication(), as_json=as_json)
            return
        if experts:
            say_experts(found.experts(), [] if as_json else found.metrics(), as_json=as_json)
            return
        if as_json:
            output.print_json(found.raw)
            return
        output.print_facts(_facts(found))
        if text := found.standing.get("text"):
            output.say(text, style="green" if found.standing.get("code") == "met" else "yellow")
        if found.verdict is not None:
            say_verdict(found.verdict, subject="Verdict", promised=found.promised)
        events = [] if found.finished else found.events()
    if found.finished:
        for line in ending(found):
            output.say(line)
    for event in events[-3:]:
        output.say(event_line(event), style="dim")


def _facts(job: Job) -> list[tuple[str, Any]]:
    function = job.function
    emulated = " (emulated)" if job.emulated else ""
    pace = f"{job.iterations_per_second:.2f} it/s" if job.iterations_per_second and not job.finished else None
    return [
        ("Job", f"{job.id}  {job.name}"),
        ("Project", f"{job.project}, by {job.owner}"),
        ("Function", f"{function.reference}  {function.entry}" if function else None),
        ("State", output.state_text(job.state, *(["paused"] if job.paused_by_owner else []))),
        ("Warning", job.warning or None),
        ("Class", job.service_class),
        ("Deadline", output.time_text(job.deadline_at) if job.deadline_at else None),
        ("Promise", _promise(job)),
        ("Progress", f"{job.iterations_done} of {job.max_iterations} iterations ({100 * job.progress:.0f}%)"),
        ("GPUs", f"{job.gpus} {job.gpu_kind}{emulated}".strip() if job.gpus else None),
        ("Kind of GPU", f"{job.gpu_kind}{emulated}" if job.gpu_kind and not job.gpus else None),
        ("Refused on", ", ".join(sorted(job.refused_kinds)) or None),
        ("Pace", pace),
        ("Submitted", output.time_text(job.submitted_at)),
        ("Started", output.time_text(job.started_at) if job.started_at else None),
        (("Planned start"),
         output.time_text(job.planned_start_at) if job.planned_start_at and not job.finished else None),
        (("Planned finish"),
         output.time_text(job.planned_finish_at) if job.planned_finish_at and not job.finished else None),
        ("Finished", output.time_text(job.finished_at) if job.finished_at else None),
        ("Slack", None if (slack := _slack_seconds(job)) is None else output.slack_text(slack)),
        ("Hyperparameters", _pairs_text(job.hyperparameters)),
        ("Labels", _pairs_text(job.labels)),
        ("Resubmission of", job.resubmission_of),
    ]  # fmt: skip


def _promise(job: Job) -> str | None:
    if job.promise_outcome == "none":
        return "promised" if job.promised else None
    reason = f" ({job.void_reason.replace('_', ' ')})" if job.void_reason else ""
    return f"{job.promise_outcome}{reason}{', at risk' if job.at_risk and not job.finished else ''}"


def _pairs_text(pairs: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(pairs.items()))


def logs(
    job_id: options.JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow until the job has ended.")] = False,
    rank: Annotated[int | None, typer.Option("--rank", help="Only this worker.", min=0)] = None,
    tail: Annotated[
        int | None, typer.Option("--tail", help="Only the last lines.", min=1, max=10_000)
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Print what the workers wrote."""
    printer = _LogPrinter(as_json)
    try:
        with session.client() as client:
            if not follow:
                printer.print(client.job(job_id).logs(rank=rank, tail=tail))
                return
            for update in watch(client, job_id, events=False, logs=True, rank=rank, tail=tail):
                printer.print(update.log_chunks)
    except KeyboardInterrupt:
        output.note(f"Detached. Follow again: punctual logs {job_id} -f")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        printer.close()


class _LogPrinter:
    """Writes pieces of output; with several workers, each line names its worker."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._for_person = output.is_terminal()
        self._ranks: set[int] = set()
        self._partial: dict[tuple[int, int], str] = {}

    def print(self, chunks: Any) -> None:
        for chunk in chunks:
            if self._as_json:
                output.print_json_line(chunk.raw)
            else:
                self._add(chunk)
        sys.stdout.flush()

    def _add(self, chunk: LogChunk) -> None:
        self._ranks.add(chunk.rank)
        source = (chunk.rank, chunk.generation)
        *lines, rest = (self._partial.get(source, "") + chunk.text).split("\n")
        self._partial[source] = rest
        for line in lines:
            self._write(chunk.rank, line)

    def _write(self, rank: int, line: str) -> None:
        # A program gets the raw bytes; a terminal must not be controlled by them.
        shown = output.safe(line.rstrip("\r").rpartition("\r")[2]) if self._for_person else line
        prefix = f"[{rank}] " if len(self._ranks) > 1 else ""
        sys.stdout.write(f"{prefix}{shown}\n")

    def close(self) -> None:
        """Write the rest that did not end in a newline."""
        for (rank, _), rest in sorted(self._partial.items()):
            if rest:
                self._write(rank, rest)
        self._partial.clear()
        sys.stdout.flush()


def events(
    job_id: options.JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow until the job has ended.")] = False,
    as_json: options.Json = False,
) -> None:
    """Print a job's history with the reasons of each decision."""
    try:
        with session.client() as client:
            updates = watch(client, job_id) if follow else None
            batches = (
                (update.events for update in updates) if updates is not None else [client.events(job_id)]
            )
            for batch in batches:
                for event in batch:
                    if as_json:
                        output.print_json_line(event.raw)
                    else:
                        output.say(event_line(event))
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def cancel(
    job_ids: Annotated[
        list[str],
        typer.Argument(metavar="JOB...", help="The ids of the jobs.", autocompletion=options.complete_job),
    ],
    as_json: options.Json = False,
) -> None:
    """Cancel jobs. A promise that they had becomes void. One that cannot be cancelled does not stop the
    others."""
    refusals: list[ApiError] = []
    with session.client() as client:
        for job_id in job_ids:
            try:
                _report(client.job(job_id).cancel(), as_json)
            except (ConflictError, NotAllowedError, NotFoundError) as error:
                error.message = f"job {job_id}: {error.message}"
                refusals.append(error)
    for refusal in refusals[:-1]:
        output.fail(refusal.message, refusal.hint)
    if refusals:
        raise refusals[-1]


def pause(job_id: options.JobId, as_json: options.Json = False) -> None:
    """Pause a job: it has no GPUs until it is resumed, and its promise is void meanwhile."""
    with session.client() as client:
        _report(client.job(job_id).pause(), as_json)


def resume(job_id: options.JobId, as_json: options.Json = False) -> None:
    """Resume a paused job."""
    with session.client() as client:
        _report(client.job(job_id).resume(), as_json)


def _report(job: Job, as_json: bool) -> None:
    if as_json:
        output.print_json(job.raw)
    else:
        paused = ", paused" if job.paused_by_owner and not job.finished else ""
        output.say(f"Job {job.id} is {job.state}{paused}.")


def deadline(
    job_id: options.JobId,
    new: Annotated[str, typer.Argument(metavar="NEW", help="20m, 1h30m, 2030-01-31T14:30Z, or none.")],
    service_class: options.ClassOption = None,
    as_json: options.Json = False,
) -> None:
    """Ask for another deadline. A refused tightening keeps the old promise."""
    with session.client() as client:
        chosen = None if new.strip().lower() == "none" else new
        if chosen is None and service_class is options.ServiceClass.SLO:
            raise InvalidInputError(
                "a job of class slo needs a deadline", hint="use best_effort for a job without a deadline"
            )
        job, verdict, changed = client.job(job_id).change_deadline(
            chosen, service_class.value if service_class else ("best_effort" if chosen is None else None)
        )
    if as_json:
        output.print_json({"job": job.raw, "verdict": verdict.raw, "changed": changed})
    else:
        say_verdict(verdict, subject=f"Job {job.id}", promised=changed and job.promised)
        when = f"the deadline {output.time_text(job.deadline_at)}" if job.deadline_at else "no deadline"
        promise = " and its promise" if job.promised and not changed else ""
        output.say(f"It {'has' if changed else 'keeps'} {when}{promise}.")
    raise typer.Exit(0 if changed else 1)
