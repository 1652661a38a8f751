"""Parsing of the server's JSON into typed values. Unknown members are kept separately, so that a newer server
causes no errors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypeVar

from punctual.errors import ServerError

T = TypeVar("T")


def read(cls: type[T], content: Any) -> T:
    """Build a dataclass from a JSON object.

    Members are taken by name; a field's metadata `read` converts its value. Missing members keep the field's
    default. A field named `raw` gets the whole object.

    Raises:
        ServerError: the content is not an object, or a member does not match the API.
    """
    if not isinstance(content, Mapping):
        raise unreadable(f"a {cls.__name__}")
    values: dict[str, Any] = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        if field.name == "raw":
            values["raw"] = dict(content)
        elif field.init and content.get(field.name) is not None:
            convert: Callable[[Any], Any] = field.metadata.get("read", lambda value: value)
            try:
                values[field.name] = convert(content[field.name])
            except (TypeError, ValueError, AttributeError) as error:
                raise unreadable(f"{cls.__name__}.{field.name}") from error
    try:
        return cls(**values)
    except TypeError as error:
        raise unreadable(f"a {cls.__name__}") from error


def unreadable(what: str) -> ServerError:
    """Return the error for an answer that does not match the API."""
    return ServerError(
        f"the server's answer could not be understood ({what})",
        status=502,
        hint="does the address lead to a Punctual server of this version?",
    )


def moment(default: Any = None) -> Any:
    """Declare a field with a moment in UTC, from RFC 3339 text."""
    return dataclasses.field(default=default, metadata={"read": datetime.fromisoformat})


def nested(cls: type[Any]) -> Any:
    """Declare a field with another object, or None."""
    return dataclasses.field(default=None, metadata={"read": lambda content: read(cls, content)})


def listed(cls: type[Any]) -> Any:
    """Declare a field with a tuple of objects."""
    return dataclasses.field(
        default=(), metadata={"read": lambda content: tuple(read(cls, item) for item in content)}
    )


def raw_object() -> Any:
    """Declare a field with the server's original object, for members that this client does not know."""
    return dataclasses.field(default_factory=dict, repr=False, compare=False)
