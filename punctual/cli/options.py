"""Options that several commands share, and reading what stands in them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any, cast

import typer

from punctual.cli import session
from punctual.client.requests import JobOptions
from punctual.errors import InvalidInputError, PunctualError


class ServiceClass(StrEnum):
    """Hard deadline, deadline as a wish, or none."""

    SLO = "slo"
    SOFT = "soft"
    BEST_EFFORT = "best_effort"


def complete_job(incomplete: str) -> list[str]:
    """Ids of recent jobs, for the shell's completion; nothing when the platform cannot be asked."""
    try:
        with session.client() as client:
            client.transport.retry_seconds = 0.0
            return [job.id for job in client.jobs(limit=50) if job.id.startswith(incomplete)]
    except PunctualError:
        return []


Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
JobId = Annotated[
    str, typer.Argument(metavar="JOB", help="The job's id.", show_default=False, autocompletion=complete_job)
]
Project = Annotated[
    str | None, typer.Option("--project", "-p", help="Project; else PUNCTUAL_PROJECT, or your only one.")
]
StoredFunction = Annotated[str, typer.Argument(metavar="NAME", help="`NAME`, or `NAME@VERSION`.")]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Renew the table until Ctrl-C.")]
Function = Annotated[
    str,
    typer.Argument(
        metavar="FUNCTION",
        help="A .py, .zip or folder, or a stored function: NAME, NAME@VERSION.",
        show_default=False,
    ),
]
DeadlineOption = Annotated[
    str | None,
    typer.Option("--deadline", "-d", help="When it must be done: 20m, 1h30m, or 2030-01-31T14:30Z."),
]
BatchSize = Annotated[int | None, typer.Option("--batch-size", "-b", help="Global batch size.", min=1)]
Iterations = Annotated[int | None, typer.Option("--iterations", "-n", help="Iterations at most.", min=1)]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="NAME=VALUE", help="A hyperparameter; the value is JSON, else text."),
]
ClassOption = Annotated[
    ServiceClass | None,
    typer.Option("--class", "-c", help="slo: hard deadline (the default with one); soft; best_effort."),
]
Name = Annotated[str | None, typer.Option("--name", help="The job's name.")]
Label = Annotated[list[str] | None, typer.Option("--label", "-l", metavar="KEY=VALUE", help="A label.")]
Data = Annotated[
    list[str] | None,
    typer.Option("--data", metavar="NAME=URL", help="Data for the function: a URL, or a path."),
]
Target = Annotated[
    str | None,
    typer.Option("--target", metavar="METRIC>=NUMBER", help="Stop early at a metric: accuracy>=0.9."),
]
Seed = Annotated[int | None, typer.Option("--seed", help="Seed of everything random.", min=0)]
CheckpointSeconds = Annotated[
    float | None, typer.Option("--checkpoint-seconds", help="Seconds between durable checkpoints.")
]
LossyOption = Annotated[
    bool | None,
    typer.Option("--lossy/--lossless", help="Whether codecs that lose something may compress gradients."),
]
Codec = Annotated[
    list[str] | None,
    typer.Option("--codec", metavar="NAME", help="The only codec that may (repeatable); implies --lossy."),
]
Replicas = Annotated[
    int | None, typer.Option("--replicas", help="Copies of the state in memory, the local one included.")
]
ProtectEvery = Annotated[
    int | None,
    typer.Option("--protect-every", help="Iterations between two points in memory, at most."),
]
FunctionName = Annotated[
    str | None, typer.Option("--function-name", help="Name for the upload; else the file's.")
]
Entry = Annotated[str | None, typer.Option("--entry", help="module:Class, where there are several.")]
Requirements = Annotated[
    str | None, typer.Option("--requirements", "-r", help="A requirements.txt to go with a single file.")
]


def job_options(
    *,
    deadline: str | None,
    batch_size: int | None,
    iterations: int | None,
    hyperparameters: Sequence[str] | None,
    service_class: ServiceClass | None,
    name: str | None,
    labels: Sequence[str] | None,
    data: Sequence[str] | None,
    target: str | None,
    seed: int | None,
    checkpoint_seconds: float | None,
    lossy: bool | None = None,
    codecs: Sequence[str] | None = None,
    replicas: int | None = None,
    protect_every: int | None = None,
    project: str | None = None,
) -> JobOptions:
    """What the options say of a job; options that were not given are left out.

    Raises:
        InvalidInputError: one of them cannot be read.
    """
    values: dict[str, Any] = {
        "deadline": deadline,
        "batch_size": batch_size,
        "max_iterations": iterations,
        "hyperparameters": hyperparameters_of(hyperparameters),
        "service_class": None if service_class is None else service_class.value,
        "name": name,
        "labels": pairs(labels, "--label"),
        "data": pairs(data, "--data"),
        "target": target,
        "seed": seed,
        "checkpoint_seconds": checkpoint_seconds,
        "lossy": None if lossy is None else "allowed" if lossy else "refused",
        "codecs": list(codecs) if codecs else None,
        "protection": {
            name: value
            for name, value in (("replicas", replicas), ("frequency", protect_every))
            if value is not None
        },
        "project": project,
    }
    given = {key: value for key, value in values.items() if value is not None and value != {}}
    return cast(JobOptions, given)


def hyperparameters_of(texts: Sequence[str] | None) -> dict[str, Any]:
    """Read the texts of `--set`.

    Raises:
        InvalidInputError: one is not of the form NAME=VALUE, or a name comes twice.
    """
    return {key: _json_or_text(value) for key, value in pairs(texts, "--set").items()}


def pairs(texts: Sequence[str] | None, option: str) -> dict[str, str]:
    """Read NAME=VALUE texts.

    Raises:
        InvalidInputError: one is not of that form, or a name comes twice.
    """
    found: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not re.fullmatch(r"[^\s=]+", name):
            raise InvalidInputError(f"{option} wants NAME=VALUE", hint=f"such as {option} {_example(option)}")
        if name in found:
            raise InvalidInputError(f"{option} names {name} twice")
        found[name] = value
    return found


def _example(option: str) -> str:
    return {"--set": "learning_rate=0.1", "--data": "images=https://host/images.tar"}.get(
        option, "team=vision"
    )


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
