"""Inputs of `predict` on the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from punctual.errors import InvalidInputError


def read_inputs(values: list[str], file: Path | None) -> list[Any]:
    """Read inputs of `predict`, each as JSON text, or a file with a list of them."""
    if file is None:
        if not values:
            raise InvalidInputError("name at least one input, or --file")
        return [_read_json("an input", text) for text in values]
    if values:
        raise InvalidInputError("name inputs or --file, not both")
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{file} cannot be read: {error}") from error
    inputs = _read_json(str(file), text)
    if not isinstance(inputs, list):
        raise InvalidInputError(f"{file} is not a JSON list of inputs")
    return inputs


def _read_json(what: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        hint = "quote texts: '\"a text\"'"
        raise InvalidInputError(f"{what} is not JSON: {text[:40]}", hint=hint) from error
