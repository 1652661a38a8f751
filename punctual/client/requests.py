"""The options of a submission, and the JSON body made from them (contracts of the REST API)."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from types import ModuleType
from typing import Any, TypedDict

from punctual.client.durations import deadline_fields
from punctual.client.models import FunctionVersion
from punctual.errors import InvalidInputError
from punctual.protocol.hyperparameters import find_problems

#: A function: a path, a class, a module, a stored version, or text such as `name@3` or `sha256:…`.
FunctionSource = str | os.PathLike[str] | type | ModuleType | FunctionVersion
Deadline = str | float | timedelta | datetime

_TARGET = re.compile(r"\s*([^\s<>=]+)\s*(>=|<=)\s*(\S+)\s*")
_NAMES_A_FILE = re.compile(r"[/\\]|\.(py|zip)$")


class JobOptions(TypedDict, total=False):
    """All options of a job besides its function. The number of GPUs is not an option: the platform decides
    it.

    `deadline`: a duration from now (`"20m"`, seconds, timedelta) or a moment with a time zone.
    `service_class`: by default `slo` with a deadline and `best_effort` without. `target`: `"accuracy>=0.9"`
    or `{"metric": "accuracy", "at_least": 0.9}`. `lossy`: `"refused"` (the default) or `"allowed"`, whether
    lossy codecs may compress gradients; `codecs`: those that may, by default `fp16`. `protection`:
    `{"replicas": 3, "frequency": 10}`, copies of the state in memory, and the largest number of iterations
    between two points there. `data`: names with URLs or paths on the servers.
    """

    hyperparameters: Mapping[str, Any]
    batch_size: int
    max_iterations: int
    deadline: Deadline | None
    service_class: str
    name: str
    labels: Mapping[str, str]
    project: str
    target: str | Mapping[str, Any] | None
    data: Mapping[str, str] | Sequence[Mapping[str, str]]
    checkpoint_seconds: float
    seed: int
    lossy: str
    codecs: Sequence[str]
    protection: Mapping[str, int]


def job_body(function: str | int, options: JobOptions) -> dict[str, Any]:
    """Return the body of `POST /jobs/` for a stored function.

    Raises:
        InvalidInputError: an option cannot be parsed, or one of the two required ones is missing.
    """
    body = override_body(options)
    if "max_iterations" not in body.get("termination", {}):
        raise InvalidInputError(
            "the number of iterations is missing", hint="give max_iterations (--iterations)"
        )
    if "global_batch_size" not in body.get("hyperparameters", {}):
        raise InvalidInputError("the global batch size is missing", hint="give batch_size (--batch-size)")
    has_deadline = "deadline_at" in body or "deadline_seconds" in body
    body.setdefault("service_class", "slo" if has_deadline else "best_effort")
    return body | {"function": function}


def override_body(options: JobOptions) -> dict[str, Any]:
    """Return the members for the given options only: a body for cloning, or the core of a submission.

    Raises:
        InvalidInputError: an option cannot be parsed.
    """
    body: dict[str, Any] = {}
    for name in options.keys() - JobOptions.__annotations__.keys():
        raise InvalidInputError(
            f"a job has no option {name}", hint=f"its options: {', '.join(JobOptions.__annotations__)}"
        )
    for key in ("name", "project", "service_class", "checkpoint_seconds", "seed"):
        if (value := options.get(key)) is not None:
            body[key] = value
    if (lossy := options.get("lossy")) is not None:
        body["lossy"] = lossy
    if options.get("codecs"):
        body["codecs"] = list(options["codecs"])
        # Naming codecs allows them.
        body.setdefault("lossy", "allowed")
    if protection := options.get("protection"):
        body["protection"] = dict(protection)
    if options.get("labels"):
        body["labels"] = dict(options["labels"])
    hyperparameters = dict(options.get("hyperparameters") or {})
    if (batch_size := options.get("batch_size")) is not None:
        hyperparameters["global_batch_size"] = batch_size
    for name, problem in find_problems(hyperparameters, complete=False).items():
        raise InvalidInputError(f"hyperparameter {name}: {problem}")
    if hyperparameters:
        body["hyperparameters"] = hyperparameters
    if termination := _termination(options):
        body["termination"] = termination
    if data := options.get("data"):
        body["data"] = data_sources(data)
    body |= deadline_fields(options.get("deadline"))
    if any(_not_json_number(value) for value in _leaves(body)):
        raise InvalidInputError("a number is not finite (NaN or infinite)")
    return body


def _termination(options: JobOptions) -> dict[str, Any]:
    termination: dict[str, Any] = {}
    if (iterations := options.get("max_iterations")) is not None:
        termination["max_iterations"] = iterations
    target = options.get("target")
    if target is not None:
        termination["target"] = parse_target(target) if isinstance(target, str) else dict(target)
    return termination


def parse_target(text: str) -> dict[str, Any]:
    """Parse `accuracy>=0.9` or `loss<=0.2`.

    Raises:
        InvalidInputError: it has another form.
    """
    match = _TARGET.fullmatch(text)
    try:
        value = float(match.group(3)) if match else math.nan
    except ValueError:
        value = math.nan
    if match is None or not math.isfinite(value):
        raise InvalidInputError(
            "a target is not of the form METRIC>=NUMBER", hint="such as accuracy>=0.9, loss<=0.2"
        )
    return {"metric": match.group(1), "at_least" if match.group(2) == ">=" else "at_most": value}


def data_sources(data: Mapping[str, str] | Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Return named data in the API's form: text with `://` is a URL, other text a path on the servers."""
    if isinstance(data, Mapping):
        return [{"name": name, "url" if "://" in place else "path": place} for name, place in data.items()]
    return [dict(source) for source in data]


def names_stored_function(text: str) -> bool:
    """Whether text names a stored function (`name`, `name@3`, `sha256:…`) rather than a file."""
    return not os.path.exists(text) and not _NAMES_A_FILE.search(text)


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return [leaf for item in value.values() for leaf in _leaves(item)]
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in _leaves(item)]
    return [value]


def _not_json_number(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
