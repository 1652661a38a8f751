"""Any exception of a function is its error, with the responsible line of its own code."""

from __future__ import annotations

import json
from asyncio import CancelledError
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from workers.runtime.data.batches import LoadedApart
from workers.runtime.failures import WorkerFailureError, blaming_the_function


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


def cancelled(_: Any = None) -> None:
    """Raise a non-Exception, as KeyboardInterrupt is, which would end pytest."""
    raise CancelledError


def unspeakable() -> None:
    raise Unspeakable


def badly_read() -> None:
    json.loads("{")


@pytest.mark.parametrize(
    ("raises", "message"),
    [
        (cancelled, "train(): CancelledError"),
        (unspeakable, "train(): Unspeakable: its message cannot be made"),
        (badly_read, "train(): JSONDecodeError: Expecting property name"),
    ],
)
def test_an_error_names_the_functions_line(raises: Callable[[], None], message: str) -> None:
    with pytest.raises(WorkerFailureError) as caught, blaming_the_function("train()"):
        raises()
    assert caught.value.reason == "function_error"
    assert caught.value.message.startswith(message)
    assert f"({Path(__file__).name}, line " in caught.value.message


def test_non_exceptions_raised_in_a_loading_process_come_back() -> None:
    loaded = LoadedApart([None], cancelled)[0]  # type: ignore[arg-type, index]
    assert loaded.message.startswith("the data set: CancelledError")
