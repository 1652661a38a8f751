"""Workers' messages, validated: they come from user code and are untrusted."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, get_args

from punctual.protocol import limits
from punctual.protocol.events import FROM_WORKERS
from punctual.protocol.reports import Measurement, Phase, check
from punctual.protocol.serving import ServingCounts

logger = logging.getLogger(__name__)

#: Limit of Linux file systems.
LONGEST_FILE_NAME_BYTES = 255

#: Phases that a worker may report; its exit is observed instead.
PHASES = frozenset(get_args(Phase)) - {"exited"}


class MessageError(ValueError):
    """An invalid message; it is reported in the job's history and otherwise ignored."""


@dataclass(frozen=True)
class Hello:
    """A worker has connected. `job`, `generation` and `rank` are None while it is warm."""

    #: Whether it has no assignment yet.
    warm: bool
    job: str | None
    generation: int | None
    rank: int | None


@dataclass(frozen=True)
class PhaseChange:
    """A worker's new phase."""

    phase: str
    iteration: int


@dataclass(frozen=True)
class Metrics:
    """A worker's measurements. `train_seconds`: time of the function's own part of an iteration.
    `host_memory_bytes`: peak host memory. Both None if not reported."""

    iteration: int
    #: Metrics by name.
    values: Mapping[str, float]
    iterations_per_second: float | None
    train_seconds: float | None
    host_memory_bytes: int | None = None


@dataclass(frozen=True)
class RequestCounts:
    """Request counts of a deployment's replica."""

    counts: Mapping[str, Any]


@dataclass(frozen=True)
class Refusal:
    """A worker's message that is refused, and why."""

    reason: str


@dataclass(frozen=True)
class WorkerEvent:
    """An event without a file. `body` has its kind and fields."""

    local_id: str
    body: Mapping[str, Any]


@dataclass(frozen=True)
class FileWritten:
    """A file in the box (for `final`, a folder) to be stored durably; `path` is relative to the box."""

    path: str
    kind: str
    iteration: int
    reason: str
    #: The job's metrics at `iteration`.
    metrics: Mapping[str, Any] = field(default_factory=dict)
    sample_order_digest: str = ""
    #: For a state that was copied while training stopped: that duration, and from then until announced.
    copy_seconds: float | None = None
    writing_seconds: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the message as the worker sent it."""
        return dict(self.__dict__)


Message = Hello | PhaseChange | Metrics | RequestCounts | WorkerEvent | FileWritten | Refusal


def parse_message(line: bytes) -> Message:
    """Parse the message in one line. Raises MessageError."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"not JSON, or nested too deeply: {line[:80]!r}") from error
    if not isinstance(value, dict):
        raise MessageError("not an object")
    if "phase" in value:
        return _phase(value)
    for name, parse in _PARSERS.items():
        if name in value:
            body = value[name]
            if not isinstance(body, dict):
                raise MessageError(f"{name} is not an object")
            return parse(body)
    raise MessageError(f"unknown message {sorted(value)[:5]}")


def _hello(body: dict[str, Any]) -> Hello:
    if body.get("warm"):
        return Hello(True, None, None, None)
    return Hello(False, _text(body, "job", 200), _whole(body, "generation"), _whole(body, "rank"))


def _phase(value: dict[str, Any]) -> PhaseChange:
    phase = value["phase"]
    if not isinstance(phase, str) or phase not in PHASES:
        raise MessageError(f"unknown phase {phase!a:.100}")
    return PhaseChange(phase, _whole(value, "iteration", default=0))


def _metrics(body: dict[str, Any]) -> Metrics:
    """Parse metrics. Values that JSON cannot represent (a diverged loss) are dropped; any other error rejects
    the message."""
    values = body.get("values")
    if not isinstance(values, dict):
        raise MessageError("metrics: values is not an object")
    measured = {
        "iteration": body.get("iteration"),
        "values": {name: value for name, value in values.items() if _finite(value) is not None},
    }
    for name in ("iterations_per_second", "train_seconds", "host_memory_bytes"):
        if _finite(body.get(name)) is not None:
            measured[name] = body[name]
    fields = _checked("metrics", Measurement, measured)
    return Metrics(
        fields["iteration"],
        fields["values"],
        fields["iterations_per_second"] if "iterations_per_second" in measured else None,
        fields["train_seconds"] if "train_seconds" in measured else None,
        fields["host_memory_bytes"] if "host_memory_bytes" in measured else None,
    )


def _serving(body: dict[str, Any]) -> RequestCounts:
    return RequestCounts(_checked("serving", ServingCounts, body))


def _event(body: dict[str, Any]) -> WorkerEvent:
    kind = body.get("kind")
    model = FROM_WORKERS.get(kind) if isinstance(kind, str) else None
    if model is None:
        raise MessageError(f"a worker may not send an event of kind {kind!a:.100}")
    return WorkerEvent(_text(body, "id", 100), {"kind": kind, **_checked(str(kind), model, body)})


def _checked(what: str, model: Any, body: dict[str, Any]) -> dict[str, Any]:
    fields, problem = check(model, body)
    if fields is None:
        raise MessageError(f"{what}: {problem}")
    return fields


def _file(body: dict[str, Any]) -> FileWritten:
    path = PurePosixPath(_text(body, "path", 1000))
    if path.is_absolute() or len(path.parts) != 2 or path.parts[0] != "out" or path.parts[1] == "..":
        raise MessageError(f"{str(path)!a:.100} is not directly inside out/")
    if len(os.fsencode(path.name)) > LONGEST_FILE_NAME_BYTES:
        raise MessageError(f"{path.name!a:.100} is no name that a file can have")
    kind = _one_of(body, "kind", ("checkpoint", "final"))
    digest = _text(body, "sample_order_digest", limits.DIGEST_CHARACTERS + 1, default="")
    return FileWritten(
        path=str(path),
        kind=kind,
        iteration=_whole(body, "iteration"),
        reason=_one_of(body, "reason", _FILE_REASONS[kind]),
        metrics=_final_metrics(body.get("metrics")),
        sample_order_digest=digest
        if digest.isascii() and digest.isalnum() and len(digest) <= limits.DIGEST_CHARACTERS
        else "",
        copy_seconds=_seconds(body, "copy_seconds"),
        writing_seconds=_seconds(body, "writing_seconds"),
    )


def _seconds(body: dict[str, Any], name: str) -> float | None:
    """Return a measured time; None if it is invalid."""
    value = _finite(body.get(name))
    return value if value is not None and 0.0 <= value <= limits.LONGEST_AGE_SECONDS else None


def _final_metrics(metrics: Any) -> dict[str, float]:
    """Return the valid final metrics; an invalid metric must not cost the job's weights."""
    good: dict[str, float] = {}
    for name, value in metrics.items() if isinstance(metrics, dict) else ():
        number = _finite(value)
        if number is None or limits.metric_name_problem(name) or len(good) == limits.METRICS_OF_AN_ITERATION:
            logger.warning("a final metric is left out: %.100a", name)
        else:
            good[name] = number
    return good


_FILE_REASONS = {
    "checkpoint": ("periodic", "suspend", "handover", "stop"),
    "final": ("max_iterations", "target", "should_stop"),
}
_PARSERS: dict[str, Callable[[dict[str, Any]], Message]] = {
    "hello": _hello,
    "metrics": _metrics,
    "serving": _serving,
    "event": _event,
    "file": _file,
}


def _text(body: dict[str, Any], name: str, limit: int, *, default: str | None = None) -> str:
    value = body.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        raise MessageError(f"{name} is not a text")
    return limits.clean_text(value, limit)


def _whole(body: dict[str, Any], name: str, *, default: int | None = None) -> int:
    value = body.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= limits.LARGEST_COUNT:
        raise MessageError(f"{name} is not a whole number of at least 0")
    return value


def _finite(value: Any) -> float | None:
    """Return a finite number, or None: JSON has neither infinity nor NaN."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _one_of(body: dict[str, Any], name: str, allowed: tuple[str, ...]) -> str:
    value = body.get(name)
    if not isinstance(value, str) or value not in allowed:
        raise MessageError(f"{name} is {value!a:.100}, not one of {', '.join(allowed)}")
    return str(value)
