"""Options for reading traces and drawing workloads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from math import isfinite

from simulation.workloads.errors import TraceError, listed, quoted


@dataclass(frozen=True, slots=True)
class WorkloadOptions:
    """Options beside trace, throughputs, GPU type and seed. The defaults are ElasticFlow's.

    ``format`` forces a trace format instead of detecting it by the header. ``virtual_cluster`` keeps one
    virtual cluster of a Philly trace, or several joined by ``+``. ``shortest_seconds``: shorter jobs of
    traces without models are left out, as in the published traces. ``tightest`` and ``loosest`` bound the
    factor lambda in ``deadline = submission + lambda * duration``, for jobs without a deadline of their own.
    The two shares turn jobs without a class in the trace into best-effort or soft ones, by seed. ``jobs`` and
    ``mean_interarrival_seconds`` are for synthetic workloads; None is the profile's own value.
    ``worker_memory_bytes``: host memory of one worker of jobs for which neither trace nor throughput table
    has it.
    """

    format: str | None = None
    virtual_cluster: str | None = None
    shortest_seconds: float = 600.0
    tightest: float = 0.5
    loosest: float = 1.5
    best_effort_share: float = 0.0
    soft_share: float = 0.0
    jobs: int | None = None
    mean_interarrival_seconds: float | None = None
    worker_memory_bytes: float | None = None

    def __post_init__(self) -> None:
        _require(self.tightest > 0 and isfinite(self.loosest), "tightest must be above 0 and loosest finite")
        _require(self.tightest <= self.loosest, "tightest must not be above loosest")
        _require(self.best_effort_share >= 0 and self.soft_share >= 0, "shares of jobs are not negative")
        _require(self.best_effort_share + self.soft_share <= 1, "the shares of jobs add up to more than 1")
        _require(self.shortest_seconds >= 0, "shortest_seconds must not be negative")
        _require(self.jobs is None or self.jobs > 0, "jobs must be a positive whole number")
        mean = self.mean_interarrival_seconds
        _require(mean is None or (mean > 0 and isfinite(mean)), "mean_interarrival_seconds must be above 0")
        memory = self.worker_memory_bytes
        _require(memory is None or (memory >= 0 and isfinite(memory)), "worker_memory_bytes is not negative")


_READERS: dict[str, Callable[[str], object]] = {
    "format": str,
    "virtual_cluster": str,
    "jobs": int,
    **dict.fromkeys(
        (
            "shortest_seconds",
            "tightest",
            "loosest",
            "best_effort_share",
            "soft_share",
            "mean_interarrival_seconds",
            "worker_memory_bytes",
        ),
        float,
    ),
}


def split_options(trace: str, options: WorkloadOptions) -> tuple[str, WorkloadOptions]:
    """Split ``name:jobs=100,tightest=1.5`` into the name and the options with these changes.

    Text without ``=`` after the colon is a name or path as a whole.

    Raises TraceError for an unknown option or a value that is not a number where one is needed.
    """
    name, colon, rest = trace.partition(":")
    if not colon or "=" not in rest:
        return trace, options
    changes: dict[str, object] = {}
    for part in rest.split(","):
        key, _, value = (piece.strip() for piece in part.partition("="))
        if key not in _READERS:
            known = listed([field.name for field in fields(WorkloadOptions)])
            raise TraceError(f"trace {quoted(name)}: unknown option {quoted(key)}; known are {known}")
        try:
            changes[key] = _READERS[key](value)
        except ValueError:
            raise TraceError(
                f"trace {quoted(name)}: option {key} needs a number, not {quoted(value)}"
            ) from None
    return name, replace(options, **changes)  # type: ignore[arg-type]


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise TraceError(problem)
