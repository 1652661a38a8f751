"""What workers say, checked: it comes from user code, so nothing of it is believed before it has been looked at."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

PHASES = frozenset(
    {
        "starting",
        "preparing",
        "ready",
        "loading",
        "training",
        "handing_over",
        "handed_over",
        "suspending",
        "suspended",
        "finishing",
        "completed",
        "failed",
        "profiling",
    }
)
TEXT_LIMIT = 20_000
METRICS_LIMIT = 100
FAILURES = (
    "function_error",
    "function_load_error",
    "environment_failed",
    "data_unavailable",
    "peer_lost",
    "start_failed",
    "killed",
)


class MessageError(ValueError):
    """A worker said something that makes no sense; it is logged and ignored."""


@dataclass(frozen=True)
class Hello:
    """A worker has connected. `job`, `generation` and `rank` are None while it is warm."""

    warm: bool
    job: str | None
    generation: int | None
    rank: int | None


@dataclass(frozen=True)
class PhaseChange:
    """Where a worker is."""

    phase: str
    iteration: int


@dataclass(frozen=True)
class Metrics:
    """What a worker measured. `train_seconds` is the time of the function's own part of an iteration."""

    iteration: int
    values: Mapping[str, float]
    iterations_per_second: float | None
    train_seconds: float | None


@dataclass(frozen=True)
class WorkerEvent:
    """An event that needs no file. `body` has its kind and fields."""

    local_id: str
    body: Mapping[str, Any]


@dataclass(frozen=True)
class FileWritten:
    """A file (or, for `final`, a folder) in the box that is to be stored durably; `path` is relative to the box."""

    path: str
    kind: str
    iteration: int
    reason: str
    metrics: Mapping[str, Any] = field(default_factory=dict)
    sample_order_digest: str = ""

    def to_json(self) -> dict[str, Any]:
        """The message as the worker sent it."""
        return dict(self.__dict__)


Message = Hello | PhaseChange | Metrics | WorkerEvent | FileWritten


def parse_message(line: bytes) -> Message:
    """The message in one line. Raises MessageError."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"not JSON: {line[:80]!r}") from error
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
        raise MessageError(f"unknown phase {phase!r}")
    return PhaseChange(phase, _whole(value, "iteration", default=0))


def _metrics(body: dict[str, Any]) -> Metrics:
    values = body.get("values")
    if not isinstance(values, dict) or len(values) > METRICS_LIMIT:
        raise MessageError(f"metrics without values, or with more than {METRICS_LIMIT}")
    numbers = {
        str(name)[:100]: number for name, value in values.items() if (number := _finite(value)) is not None
    }
    return Metrics(
        _whole(body, "iteration"),
        numbers,
        _not_negative(body.get("iterations_per_second")),
        _not_negative(body.get("train_seconds")),
    )


def _not_negative(value: Any) -> float | None:
    number = _finite(value)
    return number if number is not None and number >= 0 else None


def _event(body: dict[str, Any]) -> WorkerEvent:
    kind = body.get("kind")
    if kind == "first_iteration":
        fields: dict[str, Any] = {
            "iteration": _whole(body, "iteration"),
            "pause_seconds": _finite(body.get("pause_seconds")),
        }
    elif kind == "profile_level":
        fields = {"gpus": _whole(body, "gpus"), "memory_bytes": _whole(body, "memory_bytes", default=0)}
        for name in ("iterations_per_second", "train_seconds", "pause_seconds"):
            fields[name] = _finite(body.get(name))
    elif kind == "profile_done":
        fields = {"reason": _one_of(body, "reason", ("no_gain", "all_levels", "time", "out_of_memory"))}
    elif kind == "failed":
        fields = {
            "reason": _one_of(body, "reason", FAILURES),
            "message": _text(body, "message", TEXT_LIMIT, default=""),
            "traceback": _text(body, "traceback", TEXT_LIMIT, default=""),
            "iteration": _whole(body, "iteration", default=0),
        }
    else:
        raise MessageError(f"a worker may not send an event of kind {kind!r}")
    return WorkerEvent(_text(body, "id", 100), {"kind": kind, **fields})


def _file(body: dict[str, Any]) -> FileWritten:
    path = PurePosixPath(_text(body, "path", 1000))
    if path.is_absolute() or len(path.parts) != 2 or path.parts[0] != "out" or path.parts[1] == "..":
        raise MessageError(f"{path} is not directly inside out/")
    kind = _one_of(body, "kind", ("checkpoint", "final"))
    metrics = body.get("metrics") or {}
    if not isinstance(metrics, dict) or len(json.dumps(metrics)) > TEXT_LIMIT:
        raise MessageError("metrics are not an object or too long")
    return FileWritten(
        path=str(path),
        kind=kind,
        iteration=_whole(body, "iteration"),
        reason=_one_of(body, "reason", _FILE_REASONS[kind]),
        metrics=_finite_only(metrics),
        sample_order_digest=_text(body, "sample_order_digest", 200, default=""),
    )


_FILE_REASONS = {
    "checkpoint": ("periodic", "suspend", "handover", "stop"),
    "final": ("max_iterations", "target", "should_stop"),
}
_PARSERS: dict[str, Callable[[dict[str, Any]], Message]] = {
    "hello": _hello,
    "metrics": _metrics,
    "event": _event,
    "file": _file,
}


def _text(body: dict[str, Any], name: str, limit: int, *, default: str | None = None) -> str:
    value = body.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        raise MessageError(f"{name} is not a text")
    # PostgreSQL stores no NUL, and half a surrogate pair is not UTF-8.
    return value[:limit].replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def _whole(body: dict[str, Any], name: str, *, default: int | None = None) -> int:
    value = body.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**53:
        raise MessageError(f"{name} is not a whole number of at least 0")
    return value


def _finite(value: Any) -> float | None:
    """A finite number, or None: JSON knows neither infinity nor not-a-number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _finite_only(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name)[:100].replace("\0", ""): _finite_only(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_finite_only(item) for item in value]
    if isinstance(value, float):
        return _finite(value)
    return value.replace("\0", "\ufffd") if isinstance(value, str) else value


def _one_of(body: dict[str, Any], name: str, allowed: tuple[str, ...]) -> str:
    value = body.get(name)
    if value not in allowed:
        raise MessageError(f"{name} is {value!r}, not one of {', '.join(allowed)}")
    return str(value)
