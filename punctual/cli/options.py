"""Options that several commands share, and parsing of their values."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from punctual.cli import session
from punctual.errors import InvalidInputError, PunctualError


class ServiceClass(StrEnum):
    """Hard deadline, deadline as a wish, or none."""

    SLO = "slo"
    SOFT = "soft"
    BEST_EFFORT = "best_effort"


def complete_job(incomplete: str) -> list[str]:
    """Return ids of recent jobs, for the shell's completion; none if the platform cannot be reached."""
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
Set = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="NAME=VALUE", help="A hyperparameter; the value is JSON, else text."),
]
ClassOption = Annotated[
    ServiceClass | None,
    typer.Option("--class", "-c", help="slo: hard deadline (the default with one); soft; best_effort."),
]
Entry = Annotated[str | None, typer.Option("--entry", help="module:Class, where there are several.")]
Requirements = Annotated[
    str | None, typer.Option("--requirements", "-r", help="A requirements.txt to go with a single file.")
]


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
            raise InvalidInputError(
                f"{option} must be NAME=VALUE", hint=f"such as {option} {_example(option)}"
            )
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
