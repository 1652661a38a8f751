"""What exchanges of gradients turned out to be: seconds by stage, bytes, and the spans of one iteration."""

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
    """What was done to a group of gradients, from when to when by this host's monotonic clock."""

    stage: Stage
    resource: Resource
    group: int
    begun: float
    ended: float


@dataclass
class CommunicationMeasures:
    """Sums over iterations, of one rank.

    Attributes:
        seconds: by stage, of all gradients together, whether anyone waited or not. On a GPU, of the host's
            part of it.
        received_bytes: from other ranks. dense_bytes: that all-reduces would have brought.
        push_imbalance, pull_imbalance: of sparse gradients, the fullest server over the mean.
        residual_norm: of what is kept now. densities: of sparse gradients.
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
        """Both kinds of gradients together; what only one of them has is its. Groups of the other kind are
        numbered on."""
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
    """Notes stages as they pass, from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.sums = CommunicationMeasures()

    def begin_iteration(self) -> None:
        """Spans are of one iteration."""
        with self._lock:
            self.sums.spans = []

    def forget(self) -> CommunicationMeasures:
        """The sums so far; begins anew."""
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
        """A stage of a group is over, which has occupied a resource."""
        with self._lock:
            self.sums.seconds[stage] += ended - begun
            self.sums.received_bytes += received_bytes
            self.sums.spans.append(StageSpan(stage, resource, group, begun, ended))


class Ending:
    """Notes when a collective has ended, although nobody waits for it yet."""

    def __init__(self, work: dist.Work, *, on_gpu: bool) -> None:
        self._at: float | None = None
        # Some of gloo's collectives have no future. Who waits for them looks soon after.
        with suppress(RuntimeError):
            if not on_gpu:
                work.get_future().add_done_callback(self._ended)

    def _ended(self, _future: object) -> None:
        self._at = time.perf_counter()

    @property
    def at(self) -> float:
        """When it ended; now, where that is not known."""
        return time.perf_counter() if self._at is None else self._at
