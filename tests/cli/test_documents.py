"""The documents name existing commands, options and errors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import typer

from punctual import errors
from punctual.cli.main import app
from punctual.client import Job
from punctual.client.requests import JobOptions

DOCUMENTS = Path(__file__).parents[2] / "docs"


def commands_of(group: Any, prefix: str = "") -> set[str]:
    commands = set()
    for name, command in group.commands.items():
        commands.add(f"{prefix}{name}")
        if hasattr(command, "commands"):
            commands |= commands_of(command, f"{prefix}{name} ")
    return commands


def test_every_command_is_documented() -> None:
    text = (
        (DOCUMENTS / "cli.md")
        .read_text()
        .replace("members list/add/role/remove", "members list, members add, members role, members remove")
    )
    missing = [name for name in commands_of(typer.main.get_command(app)) if name.split()[-1] not in text]
    assert missing == []


def test_every_command_takes_json() -> None:
    group: Any = typer.main.get_command(app)
    lacking = {name for name in commands_of(group) if "--json" not in options_of(group, name.split())}
    assert lacking == {"projects members"}  # does nothing without a subcommand


def test_every_documented_option_exists() -> None:
    group: Any = typer.main.get_command(app)
    known = {option for name in commands_of(group) for option in options_of(group, name.split())}
    known |= {option for parameter in group.params for option in parameter.opts}
    written = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", (DOCUMENTS / "cli.md").read_text()))
    assert written - known == set()


def options_of(group: Any, path: list[str]) -> set[str]:
    for name in path:
        group = group.commands[name]
    return {option for parameter in group.params for option in parameter.opts} | {"--help"}


def test_every_documented_error_and_job_option_exists() -> None:
    text = (DOCUMENTS / "sdk.md").read_text()
    for name in re.findall(r"`(\w+Error)`", text):
        assert hasattr(errors, name), name
    for name in JobOptions.__annotations__:
        assert f"`{name}`" in text, name
    for name in re.findall(r"`(\w+)\(", text.split("## A job")[1].split("## The rest")[0]):
        assert hasattr(Job, name) or name in ("jobs", "job"), name
