"""`submit`, `what-if`, `accept`, `clone`, `follow`: from a function and a deadline to a running job."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Annotated

import typer

from punctual.cli import options, output, session
from punctual.cli.follow import INTERRUPTED, ending, follow_job, wait_for_job
from punctual.cli.job_options import Afterwards, Follow, JobStated, Upload, Wait, with_groups
from punctual.cli.verdicts import offer_accepted, say_verdict
from punctual.client import Client, Job
from punctual.errors import PunctualError

_FIRST_WAIT_SECONDS = 2.0


@with_groups
def submit(function: options.Function, stated: JobStated, upload: Upload, afterwards: Afterwards) -> None:
    """Submit a training function and get a verdict: can it be done by the deadline?"""
    with session.client() as client:
        try:
            with _busy("Submitting …", afterwards.as_json):
                job = client.submit(
                    function,
                    # Short, so that the job's id is printed soon; the rest of the wait follows.
                    verdict_seconds=0 if afterwards.detach else _FIRST_WAIT_SECONDS,
                    **upload.arguments(),
                    **stated.options(upload.project),
                )
        except KeyboardInterrupt:
            output.note("Interrupted; whether the job was submitted: punctual jobs")
            raise typer.Exit(INTERRUPTED) from None
        code = _after_submission(client, job, afterwards)
    raise typer.Exit(code)


def _after_submission(client: Client, job: Job, afterwards: Afterwards) -> int:
    as_json = afterwards.as_json
    if not afterwards.detach:
        _wait_for_verdict(job, as_json)
        job = _take_offer(job, yes=afterwards.yes, as_json=as_json)
    if not job.finished:
        if afterwards.follow:
            return follow_job(client, job.id, as_json=as_json)
        if afterwards.wait:
            return wait_for_job(client, job.id, as_json=as_json)
    if as_json:
        output.print_json(job.raw)
    elif afterwards.detach:
        output.say(f"Job {job.id} is submitted. Follow it: punctual follow {job.id}")
    return 1 if job.state in ("declined", "failed", "cancelled") else 0


def _wait_for_verdict(job: Job, as_json: bool) -> None:
    whereabouts = f"Job {job.id} is submitted and goes on. Its verdict: punctual job {job.id}"
    try:
        with _busy(f"Job {job.id}: waiting for the verdict (a new function is measured first) …", as_json):
            job.wait_for_verdict()
    except KeyboardInterrupt:
        output.note(whereabouts)
        raise typer.Exit(INTERRUPTED) from None
    except PunctualError:
        output.note(whereabouts)
        raise


def _take_offer(job: Job, *, yes: bool, as_json: bool) -> Job:
    """Print the verdict; if it is a decline with an offer that the person accepts, return the successor."""
    asking = (
        job.state == "declined" and job.offer is not None and not yes and not as_json and output.can_ask()
    )
    if not as_json and not asking:
        _say_outcome(job)
    if job.state != "declined" or job.offer is None:
        return job
    how_to_accept = f"Accept the offer: punctual accept {job.id}"
    try:
        accepted = offer_accepted(job, yes=yes, may_ask=asking)
    except KeyboardInterrupt:
        output.note(f"\n{how_to_accept}")
        raise typer.Exit(INTERRUPTED) from None
    if not accepted:
        if not as_json:
            output.say(how_to_accept)
        return job
    successor = job.accept_offer()
    if not as_json:
        _say_outcome(successor)
    return successor


def _say_outcome(job: Job) -> None:
    if job.state in ("failed", "cancelled"):
        for line in ending(job):
            output.say(f"Job {job.id}: {line}", style="yellow")
    else:
        say_verdict(job.verdict, subject=f"Job {job.id}", promised=job.promised)


def _busy(text: str, as_json: bool) -> AbstractContextManager[object]:
    """Return a spinner on stderr for people; nothing without a terminal."""
    console = output.console(stderr=True)
    return console.status(text) if console.is_terminal and not as_json else nullcontext()


@with_groups
def what_if(
    function: options.Function,
    stated: JobStated,
    upload: Upload,
    link: Annotated[
        float | None,
        typer.Option("--link", metavar="GBITS", help="Gbit/s between servers, in place of their links'."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Ask for the verdict without submitting anything (a new file is uploaded, but nothing runs)."""
    with session.client() as client, _busy("Asking …", as_json):
        verdict = client.what_if(
            function,
            link_bytes_per_second=None if link is None else link * 1.25e8,
            **upload.arguments(),
            **stated.options(upload.project),
        )
    if as_json:
        output.print_json(verdict.raw)
    else:
        say_verdict(verdict, subject="If submitted now")
        if verdict.needs_profiling:
            output.say("The function must be measured first: submit it to know.")
    raise typer.Exit(1 if verdict.decision == "declined" else 0)


def accept(
    job_id: options.JobId, follow: Follow = False, wait: Wait = False, as_json: options.Json = False
) -> None:
    """Accept the deadline that was offered to a declined job. The successor is a job of its own."""
    with session.client() as client:
        job = client.job(job_id).accept_offer()
        if not as_json:
            say_verdict(job.verdict, subject=f"Job {job.id}", promised=job.promised)
        code = _after_steering(client, job, follow=follow, wait=wait, as_json=as_json)
    raise typer.Exit(code)


def decline(job_id: options.JobId, as_json: options.Json = False) -> None:
    """Decline the deadline that was offered to a declined job: what is held for it goes to others at once."""
    with session.client() as client:
        job = client.job(job_id).decline_offer()
    if as_json:
        output.print_json(job.raw)
    else:
        output.say(f"The offer to job {job.id} is declined; nothing is held for it any more.")


@with_groups
def clone(job_id: options.JobId, stated: JobStated, afterwards: Afterwards) -> None:
    """Submit a job again, with the options given here changed."""
    with session.client() as client:
        job = client.job(job_id).clone(**stated.options())
        code = _after_submission(client, job, afterwards)
    raise typer.Exit(code)


def follow(job_id: options.JobId, as_json: options.Json = False) -> None:
    """Show a job's progress until it is finished. Ctrl-C stops following; the job continues."""
    with session.client() as client:
        code = follow_job(client, job_id, as_json=as_json)
    raise typer.Exit(code)


def _after_steering(client: Client, job: Job, *, follow: bool, wait: bool, as_json: bool) -> int:
    if follow:
        return follow_job(client, job.id, as_json=as_json)
    if wait:
        return wait_for_job(client, job.id, as_json=as_json)
    if as_json:
        output.print_json(job.raw)
    return 0
