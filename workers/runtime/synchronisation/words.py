"""What DDP says where it cannot go on, in words for somebody who never called it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from workers.runtime.returned import refused

_WORDS = {
    "mark a variable ready only once": (
        "the backward pass: the gradient of a parameter came in several pieces, but in one in the first "
        "iteration: give torch.utils.checkpoint use_reentrant=False"
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
    """Raise WorkerFailureError for what DDP says of the function's model."""
    try:
        yield
    except RuntimeError as error:
        for told, words in _WORDS.items():
            if told in str(error):
                raise refused(words) from error
        raise
