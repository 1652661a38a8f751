"""`functions`: upload, list, versions, and the installation of their requirements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from punctual.cli import options, output, session
from punctual.client import FunctionVersion, Requirements

functions_app = typer.Typer(help="Upload functions; list them and their versions.")


@functions_app.callback(invoke_without_command=True)
def functions(context: typer.Context, project: options.Project = None, as_json: options.Json = False) -> None:
    """List functions with their newest versions."""
    if context.invoked_subcommand is not None:
        return
    with session.client() as client:
        found = client.functions.list(project=project)
    _print(found, as_json)


@functions_app.command("upload")
def upload(
    path: Annotated[str, typer.Argument(metavar="PATH", help="A .py, .zip or folder.")],
    name: Annotated[
        str | None, typer.Option("--name", help="The function's name; by default the file's.")
    ] = None,
    entry: options.Entry = None,
    requirements: options.Requirements = None,
    project: options.Project = None,
    as_json: options.Json = False,
) -> None:
    """Store a function's code. The same code again is the same version."""
    with session.client() as client:
        version = client.functions.upload(
            path, name=name, project=project, entry=entry, requirements=requirements
        )
    if as_json:
        output.print_json(version.raw)
    else:
        output.say(f"{version.reference}  {version.entry}  sha256:{version.digest}")


@functions_app.command("versions")
def versions(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    project: options.Project = None,
    as_json: options.Json = False,
) -> None:
    """List every version of a function."""
    with session.client() as client:
        found = client.functions.versions(client.functions.find(name, project=project))
    _print(found, as_json)


@functions_app.command("requirements")
def requirements(
    name: options.StoredFunction, project: options.Project = None, as_json: options.Json = False
) -> None:
    """Show the state of a function's requirements, and the output of the installer."""
    with session.client() as client:
        version = client.functions.show(client.functions.find(name, project=project))
    _print_requirements(version, as_json)


@functions_app.command("build")
def build(
    name: options.StoredFunction, project: options.Project = None, as_json: options.Json = False
) -> None:
    """Install the requirements of a function again, after a failed or cancelled attempt."""
    with session.client() as client:
        version = client.functions.build(client.functions.find(name, project=project))
    _print_requirements(version, as_json)


@functions_app.command("cancel-build")
def cancel_build(
    name: options.StoredFunction, project: options.Project = None, as_json: options.Json = False
) -> None:
    """Cancel the installation of a function's requirements. Jobs that wait for it fail."""
    with session.client() as client:
        version = client.functions.cancel_build(client.functions.find(name, project=project))
    _print_requirements(version, as_json)


def _print_requirements(version: FunctionVersion, as_json: bool) -> None:
    if as_json:
        output.print_json(version.raw)
        return
    found = version.requirements
    output.say(f"{version.reference}  requirements: {_progress(found)}")
    for text in (found.error, found.log) if found else ():
        if text:
            output.say(text.rstrip())


def _progress(found: Requirements | None) -> str:
    """Return the state of the installation, in a few words."""
    if found is None:
        return "none"
    if found.state == "building":
        return f"building since {output.time_text(found.building_since)}"
    if found.state == "pending" and found.builds_before:
        return f"pending, {found.builds_before} builds before"
    return found.state


def _print(found: Sequence[FunctionVersion], as_json: bool) -> None:
    if as_json:
        output.print_json([version.raw for version in found])
        return
    output.print_table(
        ("NAME", "PROJECT", "ENTRY", "DIGEST", "REQUIREMENTS", "CREATED"),
        [
            (
                v.reference,
                v.project,
                v.entry,
                v.digest[:16],
                _progress(v.requirements),
                output.time_text(v.raw.get("created_at")),
            )
            for v in found
        ],
        empty="No functions. Upload one: punctual functions upload train.py",
    )
