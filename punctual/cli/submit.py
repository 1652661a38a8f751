"""`submit`, `what-if`, `accept`, `clone`, `follow`: from a function and a deadline to a running job."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Annotated

import typer

from punctual.cli import options, output, session
from punctual.cli.follow import INTERRUPTED, ending, follow_job, wait_for_job
from punctual.cli.verdicts import offer_accepted, say_verdict
from punctual.client import Client, Job
from punctual.errors import InvalidInputError, PunctualError

_FIRST_WAIT_SECONDS = 2.0

Follow = Annotated[bool, typer.Option("--follow", "-f", help="Show progress until the job is finished.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait silently until the job is finished.")]
Detach = Annotated[bool, typer.Option("--detach", help="Do not even wait for the verdict.")]
Yes = Annotated[
    bool, typer.Option("--yes", "-y", help="When declined, accept the offered deadline without asking.")
]


def submit(
    function: options.Function,
    deadline: options.DeadlineOption = None,
    batch_size: options.BatchSize = None,
    iterations: options.Iterations = None,
    hyperparameters: options.Set = None,
    service_class: options.ClassOption = None,
    name: options.Name = None,
    labels: options.Label = None,
    data: options.Data = None,
    target: options.Target = None,
    seed: options.Seed = None,
    checkpoint_seconds: options.CheckpointSeconds = None,
    lossy: options.LossyOption = None,
    codecs: options.Codec = None,
    replicas: options.Replicas = None,
    protect_every: options.ProtectEvery = None,
    project: options.Project = None,
    function_name: options.FunctionName = None,
    entry: options.Entry = None,
    requirements: options.Requirements = None,
    follow: Follow = False,
    wait: Wait = False,
    detach: Detach = False,
    yes: Yes = False,
    as_json: options.Json = False,
) -> None:
    """Submit a training function and get a verdict: can it be done by the deadline?"""
    if follow + wait + detach > 1:
        raise InvalidInputError("--follow, --wait and --detach exclude each other")
    stated = options.job_options(
        deadline=deadline, batch_size=batch_size, iterations=iterations, hyperparameters=hyperparameters,
        service_class=service_class, name=name, labels=labels, data=data, target=target, seed=seed,
        checkpoint_seconds=checkpoint_seconds, lossy=lossy, codecs=codecs, replicas=replicas,
        protect_every=protect_every, project=project,
    )  # fmt: skip
    with session.client() as client:
        try:
            with _busy("Submitting …", as_json):
                job = client.submit(
                    function,
                    function_name=function_name,
                    entry=entry,
                    requirements=requirements,
                    # Short, so that the job's id is known and said soon; the rest is waited for afterwards.
                    verdict_seconds=0 if detach else _FIRST_WAIT_SECONDS,
                    **stated,
                )
        except KeyboardInterrupt:
            output.note("Interrupted; whether the job was submitted: punctual jobs")
            raise typer.Exit(INTERRUPTED) from None
        code = _after_submission(
            client, job, follow=follow, wait=wait, detach=detach, yes=yes, as_json=as_json
        )
    raise typer.Exit(code)


def _after_submission(
    client: Client, job: Job, *, follow: bool, wait: bool, detach: bool, yes: bool, as_json: bool
) -> int:
    if not detach:
        _wait_for_verdict(job, as_json)
        job = _take_offer(job, yes=yes, as_json=as_json)
    if follow and not job.finished:
        return follow_job(client, job.id, as_json=as_json)
    if wait and not job.finished:
        return wait_for_job(client, job.id, as_json=as_json)
    if as_json:
        output.print_json(job.raw)
    elif detach:
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
    """Say the verdict; where it is a decline with an offer that the person takes, return the successor."""
    asking = (
        job.state == "declined" and job.offer is not None and not yes and not as_json and output.can_ask()
    )
    if not as_json and not asking:
        _say_outcome(job)
    if job.state != "declined" or job.offer is None:
        return job
    if not offer_accepted(job, yes=yes, may_ask=asking):
        if not as_json:
            output.say(f"Accept the offer: punctual accept {job.id}")
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
    """A spinner on stderr for a person; nothing where nobody looks."""
    console = output.console(stderr=True)
    return console.status(text) if console.is_terminal and not as_json else nullcontext()


def what_if(
    function: options.Function,
    deadline: options.DeadlineOption = None,
    batch_size: options.BatchSize = None,
    iterations: options.Iterations = None,
    hyperparameters: options.Set = None,
    service_class: options.ClassOption = None,
    name: options.Name = None,
    labels: options.Label = None,
    data: options.Data = None,
    target: options.Target = None,
    seed: options.Seed = None,
    checkpoint_seconds: options.CheckpointSeconds = None,
    lossy: options.LossyOption = None,
    codecs: options.Codec = None,
    replicas: options.Replicas = None,
    protect_every: options.ProtectEvery = None,
    project: options.Project = None,
    function_name: options.FunctionName = None,
    entry: options.Entry = None,
    requirements: options.Requirements = None,
    link: Annotated[
        float | None,
        typer.Option("--link", metavar="GBITS", help="Gbit/s between servers, in place of their links'."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Ask for the verdict without submitting anything (a new file is uploaded, but nothing runs)."""
    stated = options.job_options(
        deadline=deadline, batch_size=batch_size, iterations=iterations, hyperparameters=hyperparameters,
        service_class=service_class, name=name, labels=labels, data=data, target=target, seed=seed,
        checkpoint_seconds=checkpoint_seconds, lossy=lossy, codecs=codecs, replicas=replicas,
        protect_every=protect_every, project=project,
    )  # fmt: skip
    with session.client() as client, _busy("Asking …", as_json):
        verdict = client.what_if(
            function,
            function_name=function_name,
            entry=entry,
            requirements=requirements,
            link_bytes_per_second=None if link is None else link * 1.25e8,
            **stated,
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


def clone(
    job_id: options.JobId,
    deadline: options.DeadlineOption = None,
    batch_size: options.BatchSize = None,
    iterations: options.Iterations = None,
    hyperparameters: options.Set = None,
    service_class: options.ClassOption = None,
    name: options.Name = None,
    labels: options.Label = None,
    data: options.Data = None,
    target: options.Target = None,
    seed: options.Seed = None,
    checkpoint_seconds: options.CheckpointSeconds = None,
    lossy: options.LossyOption = None,
    codecs: options.Codec = None,
    replicas: options.Replicas = None,
    protect_every: options.ProtectEvery = None,
    follow: Follow = False,
    wait: Wait = False,
    detach: Detach = False,
    yes: Yes = False,
    as_json: options.Json = False,
) -> None:
    """Submit a job again, with the options given here changed."""
    stated = options.job_options(
        deadline=deadline, batch_size=batch_size, iterations=iterations, hyperparameters=hyperparameters,
        service_class=service_class, name=name, labels=labels, data=data, target=target, seed=seed,
        checkpoint_seconds=checkpoint_seconds, lossy=lossy, codecs=codecs, replicas=replicas,
        protect_every=protect_every,
    )  # fmt: skip
    with session.client() as client:
        job = client.job(job_id).clone(**stated)
        code = _after_submission(
            client, job, follow=follow, wait=wait, detach=detach, yes=yes, as_json=as_json
        )
    raise typer.Exit(code)


def follow(job_id: options.JobId, as_json: options.Json = False) -> None:
    """Show a job's progress until it is finished. Ctrl-C lets go of it; the job goes on."""
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
