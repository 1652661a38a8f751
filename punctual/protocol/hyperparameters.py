"""Hyperparameters that the platform reads itself (docs/functions.md), with one rule for all readers. All
others belong to the function and are passed unchanged.

Workers import this module: it needs only the standard library.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from punctual.names import shown
from punctual.protocol.limits import LARGEST_COUNT, LARGEST_GPU_COUNT, LARGEST_NUMBER

MAXIMUM_DATA_WORKERS = 32
#: A job ends after this many consecutive iterations with a loss that is not finite, unless it sets
#: `continue`. That is a hyperparameter, so that clones, clients and local trials pass it on.
NONFINITE_ITERATIONS_IN_A_ROW = 100
#: Default interval, in iterations, of comparisons of all workers' parameters.
COMPARED_EVERY = 100
_CONTINUE, _STOP = "continue", "stop"
#: Orders of samples. All but the random one depend on how mixtures of experts routed the samples.
RANDOM_ORDER = "random"
SAMPLE_ORDERS = (RANDOM_ORDER, "magnitude", "cosine")
#: The hyperparameters among these that change neither speed nor memory of any function.
SPEED_NEUTRAL = frozenset({"nonfinite"})

#: Names that can only mean a number of GPUs, in lower case without hyphens and underscores.
_GPU_COUNTS = frozenset(
    [
        "gpucount",
        "gpus",
        "gpuspernode",
        "localworldsize",
        "maxgpus",
        "mingpus",
        "ngpu",
        "ngpus",
        "nprocpernode",
        "numgpu",
        "numgpus",
        "worldsize",
    ]
)
NO_GPU_COUNT = (
    "Punctual decides how many GPUs a job gets, and changes it while the job runs; say what must be done "
    "(iterations, global batch size) and by when (deadline), and leave {name} out."
)


class HyperparameterError(ValueError):
    """A hyperparameter that the platform reads is invalid; the message says which, and what would be
    right."""


@dataclass(frozen=True)
class Settings:
    """The platform's settings in the hyperparameters.

    Attributes:
        global_batch_size: samples per iteration over all workers.
        gradient_clip_norm: largest norm of the global gradient; None: gradients are not clipped.
        evaluate_every: iterations between two evaluations; 0: only the one at the end.
        compare_parameters_every: iterations between two comparisons of all workers' parameters; 0: never.
        data_workers: processes that load batches in advance, for each GPU.
        stops_on_nonfinite: whether a loss that stays NaN or infinite ends the job.
        sample_order: one of `SAMPLE_ORDERS`.
    """

    global_batch_size: int
    gradient_clip_norm: float | None = None
    evaluate_every: int = 0
    compare_parameters_every: int = COMPARED_EVERY
    data_workers: int = 0
    stops_on_nonfinite: bool = True
    sample_order: str = RANDOM_ORDER


def read_settings(hyperparameters: Mapping[str, Any]) -> Settings:
    """Parse the platform's settings; null counts as omitted.

    Raises:
        HyperparameterError: a value is invalid.
    """
    for name, problem in find_problems(hyperparameters).items():
        raise HyperparameterError(f"hyperparameter {name}: {problem}")
    clip_norm = hyperparameters.get("gradient_clip_norm")
    compared = hyperparameters.get("compare_parameters_every")
    return Settings(
        global_batch_size=hyperparameters["global_batch_size"],
        gradient_clip_norm=float(clip_norm) if clip_norm else None,
        evaluate_every=hyperparameters.get("evaluate_every") or 0,
        compare_parameters_every=COMPARED_EVERY if compared is None else compared,
        data_workers=hyperparameters.get("data_workers") or hyperparameters.get("num_workers") or 0,
        stops_on_nonfinite=hyperparameters.get("nonfinite") != _CONTINUE,
        sample_order=hyperparameters.get("sample_order") or RANDOM_ORDER,
    )


def find_problems(hyperparameters: Mapping[str, Any], *, complete: bool = True) -> dict[str, str]:
    """Return the problems of the platform's hyperparameters: a sentence by name, empty without problems.

    Args:
        complete: whether they are all of a job's, rather than its differences from another job.
    """
    found: dict[str, str] = {}
    if complete and hyperparameters.get("global_batch_size") is None:
        found["global_batch_size"] = "Needed: samples per iteration, a whole number from 1."
    for name, value in hyperparameters.items():
        problem = _problem(str(name), value)
        if problem is not None:
            found[name] = problem
    loaders = [hyperparameters.get(name) for name in ("data_workers", "num_workers")]
    if not found and None not in loaders and loaders[0] != loaders[1]:
        found["num_workers"] = "Means the same as data_workers: give one of them."
    return found


def _problem(name: str, value: Any) -> str | None:
    if value is None:
        return None
    return _CHECKS[name](value) if name in _CHECKS else _gpu_count_problem(name, value)


def _whole(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _batch_size_problem(value: Any) -> str | None:
    if _whole(value, 1, LARGEST_NUMBER):
        return None
    return f"Samples per iteration: a whole number from 1 to {LARGEST_NUMBER}, not {_shown(value)}."


def _clip_norm_problem(value: Any) -> str | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and 0 <= value <= sys.float_info.max:
        return None
    return f"The largest norm of the gradient: a number from 0 (0 or null: no clipping), not {_shown(value)}."


def _evaluate_every_problem(value: Any) -> str | None:
    if _whole(value, 0, LARGEST_COUNT):
        return None
    return (
        "Iterations between two evaluations: a whole number from 0 (0 or null: at the end alone), not "
        f"{_shown(value)}."
    )


def _compared_every_problem(value: Any) -> str | None:
    if _whole(value, 0, LARGEST_COUNT):
        return None
    return (
        "Iterations between two comparisons of all workers' parameters: a whole number from 0 (0: never), "
        f"not {_shown(value)}."
    )


def _data_workers_problem(value: Any) -> str | None:
    if _whole(value, 0, MAXIMUM_DATA_WORKERS):
        return None
    return (
        f"Processes that load data for each GPU: a whole number from 0 to {MAXIMUM_DATA_WORKERS}, not "
        f"{_shown(value)}."
    )


def _nonfinite_problem(value: Any) -> str | None:
    if value in (_CONTINUE, _STOP):
        return None
    return (
        f'"{_STOP}" ends the job once its loss is NaN or infinite for {NONFINITE_ITERATIONS_IN_A_ROW} '
        f'iterations in a row, "{_CONTINUE}" lets it train on; not {_shown(value)}.'
    )


def _sample_order_problem(value: Any) -> str | None:
    if value in SAMPLE_ORDERS:
        return None
    return (
        'The order of samples: "random", or "magnitude" or "cosine" for models with an adaptive gate; not '
        f"{_shown(value)}."
    )


_CHECKS: Mapping[str, Callable[[Any], str | None]] = {
    "global_batch_size": _batch_size_problem,
    "gradient_clip_norm": _clip_norm_problem,
    "evaluate_every": _evaluate_every_problem,
    "compare_parameters_every": _compared_every_problem,
    "data_workers": _data_workers_problem,
    "num_workers": _data_workers_problem,
    "nonfinite": _nonfinite_problem,
    "sample_order": _sample_order_problem,
}


def _gpu_count_problem(name: str, value: Any) -> str | None:
    """Return the problem of a hyperparameter that requests a number of GPUs, as a number or in digits. Lists
    of devices, words and impossible numbers belong to the function."""
    if re.sub(r"[-_ ]", "", name).lower() not in _GPU_COUNTS or isinstance(value, bool):
        return None
    count = int(value) if isinstance(value, str) and re.fullmatch(r"\s*[0-9]{1,9}\s*", value) else value
    is_count = isinstance(count, int | float) and 1 <= count <= LARGEST_GPU_COUNT and count == int(count)
    return NO_GPU_COUNT.format(name=name) if is_count else None


def _shown(value: Any) -> str:
    """Return a value as JSON, short enough for a sentence."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else "an infinite number" if math.isinf(value) else repr(value)
    if isinstance(value, int):
        return str(value) if abs(value) < 10**20 else "a number of more than 20 digits"
    if isinstance(value, str):
        return f'the text "{shown(value[:40])}"'
    return "a list" if isinstance(value, list | tuple) else "an object"
