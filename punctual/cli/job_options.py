"""Options of `submit`, `what-if` and `clone`, in groups that several commands share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, cast, get_type_hints

import typer

from punctual.cli import options
from punctual.client.requests import JobOptions
from punctual.errors import InvalidInputError


@dataclass(frozen=True)
class JobStated:
    """Options of a job; None for omitted ones."""

    deadline: Annotated[
        str | None,
        typer.Option("--deadline", "-d", help="The deadline: 20m, 1h30m, or 2030-01-31T14:30Z."),
    ] = None
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", "-b", help="Global batch size.", min=1)
    ] = None
    iterations: Annotated[
        int | None, typer.Option("--iterations", "-n", help="Maximum number of iterations.", min=1)
    ] = None
    hyperparameters: options.Set = None
    service_class: options.ClassOption = None
    name: Annotated[str | None, typer.Option("--name", help="The job's name.")] = None
    labels: Annotated[
        list[str] | None, typer.Option("--label", "-l", metavar="KEY=VALUE", help="A label.")
    ] = None
    data: Annotated[
        list[str] | None,
        typer.Option("--data", metavar="NAME=URL", help="Data for the function: a URL, or a path."),
    ] = None
    target: Annotated[
        str | None,
        typer.Option("--target", metavar="METRIC>=NUMBER", help="Stop early at a metric: accuracy>=0.9."),
    ] = None
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of everything random.", min=0)] = None
    checkpoint_seconds: Annotated[
        float | None, typer.Option("--checkpoint-seconds", help="Seconds between durable checkpoints.")
    ] = None
    lossy: Annotated[
        bool | None,
        typer.Option("--lossy/--lossless", help="Whether lossy codecs may compress gradients."),
    ] = None
    codecs: Annotated[
        list[str] | None,
        typer.Option("--codec", metavar="NAME", help="Allow only this codec (repeatable); implies --lossy."),
    ] = None
    replicas: Annotated[
        int | None, typer.Option("--replicas", help="Copies of the state in memory, the local one included.")
    ] = None
    protect_every: Annotated[
        int | None,
        typer.Option("--protect-every", help="Maximum number of iterations between two copies in memory."),
    ] = None

    def options(self, project: str | None = None) -> JobOptions:
        """Return the client's options, without omitted ones.

        Raises:
            InvalidInputError: an option cannot be parsed.
        """
        values: dict[str, Any] = {
            "deadline": self.deadline,
            "batch_size": self.batch_size,
            "max_iterations": self.iterations,
            "hyperparameters": options.hyperparameters_of(self.hyperparameters),
            "service_class": None if self.service_class is None else self.service_class.value,
            "name": self.name,
            "labels": options.pairs(self.labels, "--label"),
            "data": options.pairs(self.data, "--data"),
            "target": self.target,
            "seed": self.seed,
            "checkpoint_seconds": self.checkpoint_seconds,
            "lossy": None if self.lossy is None else "allowed" if self.lossy else "refused",
            "codecs": self.codecs or None,
            "protection": {
                name: value
                for name, value in (("replicas", self.replicas), ("frequency", self.protect_every))
                if value is not None
            },
            "project": project,
        }
        given = {key: value for key, value in values.items() if value is not None and value != {}}
        return cast(JobOptions, given)


@dataclass(frozen=True)
class Upload:
    """Where a function is uploaded, and details that a file alone does not give."""

    project: options.Project = None
    function_name: Annotated[
        str | None, typer.Option("--function-name", help="Name of the upload; by default the file's.")
    ] = None
    entry: options.Entry = None
    requirements: options.Requirements = None

    def arguments(self) -> dict[str, str | None]:
        """Return the arguments of the client's uploading methods, without the project."""
        return {
            "function_name": self.function_name,
            "entry": self.entry,
            "requirements": self.requirements,
        }


Follow = Annotated[bool, typer.Option("--follow", "-f", help="Show progress until the job has ended.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait silently until the job is finished.")]


@dataclass(frozen=True)
class Afterwards:
    """What the command does after submitting the job."""

    follow: Follow = False
    wait: Wait = False
    detach: Annotated[bool, typer.Option("--detach", help="Return before the verdict.")] = False
    yes: Annotated[
        bool,
        typer.Option("--yes", "-y", help="When declined, accept the offered deadline without asking."),
    ] = False
    as_json: options.Json = False

    def __post_init__(self) -> None:
        if self.follow + self.wait + self.detach > 1:
            raise InvalidInputError("--follow, --wait and --detach exclude each other")


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return `command` in the form that Typer needs, with an option for each field instead of each group
    parameter."""
    hints = get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, type[Any]] = {}
    for parameter in inspect.signature(command).parameters.values():
        hint = hints[parameter.name]
        if not (isinstance(hint, type) and is_dataclass(hint)):
            parameters.append(parameter.replace(annotation=hint))
            continue
        groups[parameter.name] = hint
        types = get_type_hints(hint, include_extras=True)
        parameters += [
            inspect.Parameter(
                field.name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=field.default,
                annotation=types[field.name],
            )
            for field in fields(hint)
        ]

    @functools.wraps(command)
    def called(**given: Any) -> None:
        made = {
            name: group(**{field.name: given.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        command(**given, **made)

    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return called
