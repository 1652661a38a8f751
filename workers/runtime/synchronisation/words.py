"""PyTorch's errors about calls of the runtime, reworded for the function's author."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from workers.runtime.function.returned import refused

_WORDS = {
    "backward through the graph a second time": (
        "the backward pass: a part of the loss was used in a backward pass before: train() must not call "
        "backward(), and what it keeps of an earlier batch needs .detach()"
    ),
    "expects same model across all ranks": (
        "init_model() built different models on different workers: build the same one for the same "
        "hyperparameters"
    ),
    "appears not to match": (
        "init_model() built parameters of different shapes on different workers: build the same model for "
        "the same hyperparameters"
    ),
}


@contextmanager
def in_our_words() -> Iterator[None]:
    """Raise WorkerFailureError in place of PyTorch's errors about calls of the runtime."""
    try:
        yield
    except RuntimeError as error:
        for told, words in _WORDS.items():
            if told in str(error):
                raise refused(words) from error
        raise
