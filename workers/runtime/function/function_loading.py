"""Finds a person's class in the unpacked bundle."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from punctual.function import TrainingFunction
from punctual.randomness import derive_seed, seed_generators
from workers.runtime.failures import WorkerFailureError, blaming_the_function


def load_function(box: Path, entry: str, hyperparameters: Mapping[str, Any], seed: int) -> TrainingFunction:
    """Import `entry` (``module:Class``) from the box's bundle and instantiate it.

    The bundle comes first on `sys.path`, then the installed requirements, then the runtime's own packages.
    Random draws during import and instantiation follow the job's seed.

    Raises:
        WorkerFailureError: `function_load_error`, with the frames of the person's file.
    """
    overlay, bundle = box / "overlay", box / "bundle"
    for folder in (overlay, bundle):
        if folder.is_dir():
            sys.path.insert(0, str(folder))
    module_name, separator, class_name = entry.partition(":")
    if not separator or not module_name or not class_name:
        raise WorkerFailureError(
            "function_load_error", f"the entry {entry!r} is not of the form module:Class"
        )
    importlib.invalidate_caches()
    seed_generators(derive_seed(seed, "function"))
    with blaming_the_function(f"importing {module_name}", "function_load_error"):
        module = importlib.import_module(module_name)
    found = getattr(module, class_name, None)
    if found is None:
        raise WorkerFailureError("function_load_error", f"{module_name} defines no class {class_name!r}")
    if not (isinstance(found, type) and issubclass(found, TrainingFunction)):
        raise WorkerFailureError(
            "function_load_error", f"{entry} is not a subclass of punctual.TrainingFunction"
        )
    with blaming_the_function(f"{class_name}()", "function_load_error"):
        return found(hyperparameters)


def overrides(function: TrainingFunction, method: str) -> bool:
    """Return whether the function's class overrides an optional method."""
    return getattr(type(function), method) is not getattr(TrainingFunction, method)
