"""RFC 9457 problem documents: the form of every HTTP error answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

MEDIA_TYPE = "application/problem+json"


def problem(
    status: int,
    code: str,
    detail: str,
    *,
    title: str | None = None,
    errors: Mapping[str, Sequence[str]] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the document. ``code`` is stable, for programs; ``detail`` is a sentence for people."""
    document: dict[str, Any] = {
        "type": f"urn:punctual:problem:{code}",
        "title": title or HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "code": code,
    }
    if errors:
        document["errors"] = {field: list(messages) for field, messages in errors.items()}
    return {**(extra or {}), **document}
