"""Punctual: a training function and the time by which its result is needed.

Functions import from here; importing it needs neither PyTorch nor a server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from punctual.function import DataNotDeclaredError, TrainingFunction, artifact_path, data_path
from punctual.inputs import as_tensor
from punctual.randomness import (
    current_iteration,
    current_sample_indices,
    sample_generator,
    sample_rand,
    sample_randn,
)
from punctual.tasks import Task

if TYPE_CHECKING:
    from punctual.client import Client, Job, Offer, Server, Verdict
    from punctual.errors import PunctualError

#: Names of the client, imported on first access because it needs httpx, which workers do not have.
_OF_THE_CLIENT = {
    "Client": "punctual.client",
    "Job": "punctual.client",
    "Offer": "punctual.client",
    "PunctualError": "punctual.errors",
    "Server": "punctual.client",
    "Verdict": "punctual.client",
}

__all__ = [
    "Client",
    "DataNotDeclaredError",
    "Job",
    "Offer",
    "PunctualError",
    "Server",
    "Task",
    "TrainingFunction",
    "Verdict",
    "artifact_path",
    "as_tensor",
    "current_iteration",
    "current_sample_indices",
    "data_path",
    "sample_generator",
    "sample_rand",
    "sample_randn",
]


def __getattr__(name: str) -> Any:
    if name in _OF_THE_CLIENT:
        from importlib import import_module

        return getattr(import_module(_OF_THE_CLIENT[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
