"""Measurements of exchanges of gradients: seconds by stage, bytes, and the spans of one iteration."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Literal

import torch.distributed as dist

from communication.plan import Resource

Stage = Literal["encode", "exchange", "decode"]
STAGES: tuple[Stage, ...] = ("encode", "exchange", "decode")


@dataclass(frozen=True, slots=True)
class StageSpan:
    """One stage of a group of gradients, with begin and end by this host's monotonic clock."""

    stage: Stage
    resource: Resource
    group: int
    begun: float
    ended: float


@dataclass
class CommunicationMeasures:
    """Sums over iterations of one rank.

    Attributes:
        seconds: by stage, over all gradients, whether or not anything waited. On a GPU, the host's part of
            it.
        received_bytes: from other ranks. dense_bytes: that all-reduces would have received.
        push_imbalance, pull_imbalance: of sparse gradients, the fullest server over the mean.
        residual_norm: current value. densities: of sparse gradients.
        spans: of the last iteration.
    """

    seconds: dict[Stage, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    received_bytes: int = 0
    dense_bytes: int = 0
    push_imbalance: float = 1.0
    pull_imbalance: float = 1.0
    residual_norm: float = 0.0
    densities: dict[str, float] = field(default_factory=dict)
    spans: list[StageSpan] = field(default_factory=list)

    def with_others(self, other: CommunicationMeasures) -> CommunicationMeasures:
        """Return the combined measures of two kinds of gradients; the other's groups are numbered after
        these."""
        groups = 1 + max((span.group for span in self.spans), default=-1)
        return CommunicationMeasures(
            {stage: self.seconds[stage] + other.seconds[stage] for stage in STAGES},
            self.received_bytes + other.received_bytes,
            self.dense_bytes + other.dense_bytes,
            max(self.push_imbalance, other.push_imbalance),
            max(self.pull_imbalance, other.pull_imbalance),
            (self.residual_norm**2 + other.residual_norm**2) ** 0.5,
            self.densities | other.densities,
            [*self.spans, *(replace(span, group=span.group + groups) for span in other.spans)],
        )


class StageNotes:
    """Records stages, from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.sums = CommunicationMeasures()

    def begin_iteration(self) -> None:
        """Clear the spans, which cover one iteration."""
        with self._lock:
            self.sums.spans = []

    def forget(self) -> CommunicationMeasures:
        """Return the sums so far and reset them."""
        with self._lock:
            found, self.sums = self.sums, CommunicationMeasures()
        return found

    def passed(
        self,
        stage: Stage,
        resource: Resource,
        group: int,
        begun: float,
        ended: float,
        received_bytes: int = 0,
    ) -> None:
        """Record a completed stage of a group, and the resource that it occupied."""
        with self._lock:
            self.sums.seconds[stage] += ended - begun
            self.sums.received_bytes += received_bytes
            self.sums.spans.append(StageSpan(stage, resource, group, begun, ended))


class Ending:
    """Records when a collective ends, before it is waited for."""

    def __init__(self, work: dist.Work, *, on_gpu: bool) -> None:
        self._at: float | None = None
        # Some of gloo's collectives have no future; their waiter reads the time soon after.
        with suppress(RuntimeError):
            if not on_gpu:
                work.get_future().add_done_callback(self._ended)

    def _ended(self, _future: object) -> None:
        self._at = time.perf_counter()

    @property
    def at(self) -> float:
        """Time of the end; now if it is unknown."""
        return time.perf_counter() if self._at is None else self._at
