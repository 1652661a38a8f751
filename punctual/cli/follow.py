"""Following a job: a progress bar for people, lines for a pipe, JSON lines for a program."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Protocol

from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column
from rich.text import Text

from punctual.cli import output
from punctual.cli.verdicts import sentence
from punctual.client import Client, Job
from punctual.client.durations import format_duration
from punctual.client.models import JobEvent, JobFacts, Metric
from punctual.client.watching import Update, watch

INTERRUPTED = 130
_SECONDS_BETWEEN_LINES = 10.0
_FINISHED_WELL = {"completed": 0}


class _Display(Protocol):
    def event(self, event: JobEvent) -> None: ...
    def progress(self, job: Job, metric: Metric | None, outage: str) -> None: ...


def follow_job(client: Client, job_id: str, *, as_json: bool = False) -> int:
    """Follow a job to its end and return the exit code. Ctrl-C stops following; the job continues.

    Each event is printed once, regardless of interruptions.
    """
    job: Job | None = None
    try:
        with _display(as_json) as display:
            metric: Metric | None = None
            for update in watch(client, job_id, metrics=True):
                job, metric = Job.from_document(client, update.job), update.metric or metric
                _show(display, job, metric, update)
    except KeyboardInterrupt:
        output.note(f"Detached; job {job_id} goes on. Reattach: punctual follow {job_id}")
        return INTERRUPTED
    return finish(job, as_json=as_json) if job is not None else 1


def wait_for_job(client: Client, job_id: str, *, as_json: bool = False) -> int:
    """Wait silently for a job's end and return the exit code."""
    job: Job | None = None
    try:
        for update in watch(client, job_id, events=False):
            job = Job.from_document(client, update.job)
    except KeyboardInterrupt:
        output.note(f"Not waiting any longer; job {job_id} goes on. Follow it: punctual follow {job_id}")
        return INTERRUPTED
    if job is not None and as_json:
        output.print_json(job.raw)
    return finish(job, as_json=as_json) if job is not None else 1


def _show(display: _Display, job: Job, metric: Metric | None, update: Update) -> None:
    for event in update.events:
        display.event(event)
    display.progress(job, metric, update.outage)


def finish(job: Job, *, as_json: bool) -> int:
    """Print how a job ended; return 0 if it is completed."""
    if not as_json:
        for line in ending(job):
            output.say(line, style="green" if job.succeeded and not job.warning else "yellow")
    return _FINISHED_WELL.get(job.state, 1)


def ending(job: JobFacts) -> Iterator[str]:
    """Yield how a job ended, in sentences."""
    if job.state == "completed":
        yield f"Completed at {output.time_text(job.finished_at)}{_against_deadline(job)}."
        if job.warning:
            yield job.warning
        if job.standing.get("code") in ("missed", "void", "late"):
            yield job.standing.get("text", "")
        if job.final_metrics:
            yield "Final metrics: " + ", ".join(
                f"{name} {_number(v)}" for name, v in sorted(job.final_metrics.items())
            )
        yield f"Get the result: punctual artifacts {job.id} --download ."
    elif job.state == "failed":
        failure = job.failure or {}
        message = str(failure.get("message") or failure.get("reason") or "no reason was given")
        yield f"Failed: {message.strip().splitlines()[-1]}"
        yield f"See why: punctual logs {job.id}"
    elif job.state == "declined":
        yield f"Declined. {sentence(job.verdict.reason if job.verdict else '')}".rstrip()
        if job.offer is not None:
            yield f"Accept {output.time_text(job.offer.deadline_at)} instead: punctual accept {job.id}"
        elif job.verdict is not None and job.verdict.no_offer:
            yield job.verdict.no_offer
    else:
        yield f"{job.state.capitalize()}."


def _against_deadline(job: JobFacts) -> str:
    if job.deadline_at is None or job.slack_seconds is None:
        return ""
    if job.slack_seconds < 0:
        return f", {format_duration(-job.slack_seconds)} after its deadline"
    return f", {format_duration(job.slack_seconds)} before its deadline"


def status_text(job: JobFacts, metric: Metric | None) -> str:
    """Return GPUs, pace, loss and the planned finish, in one line."""
    if job.finished:
        return ""
    parts = [f"{job.gpus} {'GPU' if job.gpus == 1 else 'GPUs'}{' (emulated)' if job.emulated else ''}"]
    if job.iterations_per_second and job.state == "running":
        parts.append(f"{job.iterations_per_second:.2f} it/s")
    if metric is not None:
        parts += [
            f"{name} {_number(value)}" for name, value in sorted(metric.values.items()) if name == "loss"
        ]
    # The planned time, not an extrapolation: a plan with slack may run slowly now and faster later.
    finish_at = job.planned_finish_at
    if finish_at is not None:
        parts.append(f"planned to end {output.time_text(finish_at)}{_margin(job, finish_at)}")
    if job.warning:
        parts.append("LOSS NOT FINITE")
    code = job.standing.get("code", "")
    if code in ("at_risk", "late", "missed") or job.at_risk:
        parts.append((code or "at_risk").upper().replace("_", " "))
    return " · ".join(parts)


def _margin(job: JobFacts, finish_at: datetime) -> str:
    if job.deadline_at is None:
        return ""
    margin = (job.deadline_at - finish_at).total_seconds()
    return f" ({format_duration(abs(margin))} {'before' if margin >= 0 else 'AFTER'} deadline)"


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


# --- displays -----------------------------------------------------------------------------------------------


@contextmanager
def _display(as_json: bool) -> Iterator[_Display]:
    if as_json:
        yield _JsonLines()
    elif output.is_terminal():
        with Progress(
            TextColumn("{task.fields[state]}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            # A narrow terminal cuts this column alone.
            TextColumn("{task.fields[status]}", table_column=Column(ratio=1, no_wrap=True)),
            expand=True,
            console=output.console(),
            transient=False,
        ) as progress:
            yield _Bar(progress)
    else:
        yield _Lines()


class _Bar:
    """A bar at the bottom of the terminal, with the events above it."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=1, state="", status="")

    def event(self, event: JobEvent) -> None:
        self._progress.console.print(Text(event_line(event), style="dim"))

    def progress(self, job: Job, metric: Metric | None, outage: str) -> None:
        status = "connection lost, trying again …" if outage else status_text(job, metric)
        self._progress.update(
            self._task,
            completed=job.iterations_done,
            total=max(job.max_iterations, 1),
            state=output.safe(job.state),
            status=output.safe(status),
        )


class _Lines:
    """Lines for a log file: every event, and the progress at intervals."""

    def __init__(self) -> None:
        self._printed_at = float("-inf")
        self._last = ("", -1)

    def event(self, event: JobEvent) -> None:
        output.say(event_line(event))

    def progress(self, job: Job, metric: Metric | None, outage: str) -> None:
        if outage:
            output.note(f"{outage}; trying again …")
            return
        now, state = time.monotonic(), (job.state, job.iterations_done)
        if (
            job.iterations_done > 0
            and state != self._last
            and now - self._printed_at >= _SECONDS_BETWEEN_LINES
        ):
            counted = f"{job.iterations_done}/{job.max_iterations}"
            output.say(f"{job.state} {counted} · {status_text(job, metric)}")
            self._printed_at, self._last = now, state


class _JsonLines:
    """One JSON document per line: `{"event": …}` and `{"job": …}`."""

    def __init__(self) -> None:
        self._last: dict[str, object] | None = None

    def event(self, event: JobEvent) -> None:
        output.print_json_line({"event": event.raw})

    def progress(self, job: Job, metric: Metric | None, outage: str) -> None:
        if not outage and job.raw != self._last:
            output.print_json_line({"job": job.raw})
            self._last = job.raw


def event_line(event: JobEvent) -> str:
    """Return an event in one line: time, kind, message."""
    actor = f" [{event.actor}]" if event.actor else ""
    return output.safe(f"{output.time_text(event.happened_at)}  {event.kind}: {event.message}{actor}")
