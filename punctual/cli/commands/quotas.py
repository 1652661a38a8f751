"""`projects quota` and `users quota`: limits, and their changes by operators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from punctual.cli import output
from punctual.client.account import Projects, Quota, Users
from punctual.errors import InvalidInputError

Limits = Annotated[
    list[str] | None,
    typer.Argument(metavar="[LIMIT=VALUE]...", help="Such as deployments=5, or active_jobs=none."),
]


def show_or_change(of: Projects | Users, name: str, limits: Sequence[str], as_json: bool) -> None:
    """Print the limits of a project or person, after making the given changes."""
    changes = dict(_read_change(text) for text in limits)
    found: Quota = of.set_quota(name, changes) if changes else of.quota(name)
    if as_json:
        output.print_json(found)
    else:
        output.print_facts([(limit, _shown(value)) for limit, value in found.items()])


def _read_change(text: str) -> tuple[str, float | None]:
    limit, separator, value = text.partition("=")
    try:
        if not separator:
            raise ValueError
        return limit.replace("-", "_"), None if value == "none" else _number(value)
    except ValueError as error:
        hint = "LIMIT=NUMBER, or LIMIT=none for no limit"
        raise InvalidInputError(f"“{text[:60]}” is not a limit", hint=hint) from error


def _number(text: str) -> float:
    number = int(text) if text.isdecimal() else float(text)
    if not math.isfinite(number):
        raise ValueError
    return number


def _shown(value: Any) -> str:
    return "none" if value is None else f"{value:,}".replace(",", " ")
