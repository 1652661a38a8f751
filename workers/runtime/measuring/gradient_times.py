"""When gradients become ready in an iteration, and its other times: the planners' tensor profile."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from workers.runtime.emulation.pace import Pace

#: Number of newest iterations that are kept.
ITERATIONS_KEPT = 256


@dataclass(frozen=True)
class IterationTimes:
    """Times of one iteration, in seconds.

    Attributes:
        ready: name of each computed gradient with its time since the backward pass began, in order.
        other: time outside the backward pass and the synchronisation.
        exposed: time after the last gradient in which the iteration waited for synchronisation.
    """

    seconds: float
    ready: tuple[tuple[str, float], ...]
    other: float
    exposed: float


class GradientTimes:
    """Times the iterations of a model while `watching`.

    It uses the clock of the GPU, or the emulated clock of an emulated device. Time of codecs within the
    backward pass is excluded. It must be constructed after the `Pace` of the model.
    """

    def __init__(self, module: nn.Module, device: torch.device, pace: Pace | None) -> None:
        self.watching = False
        self.iterations: list[IterationTimes] = []
        #: When the last backward pass began, by this host's clock.
        self.backward_began = 0.0
        self._cuda, self._pace = device.type == "cuda", pace
        self._ready: list[tuple[str, Any]] = []
        self._marks: list[Any] = []
        self._coded_seconds = 0.0
        #: Called before a gradient is accumulated, so before any other hook uses it.
        self._hooks = [
            parameter.register_hook(partial(self._gradient_ready, name))
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        ]

    def close(self) -> None:
        """Remove the hooks."""
        self.watching = False
        for hook in self._hooks:
            hook.remove()

    def begins(self) -> None:
        """Note that an iteration begins."""
        self._ready, self._marks = [], []
        self._mark()

    def backward_begins(self) -> None:
        """Note that its backward pass begins."""
        self.backward_began = time.perf_counter()
        self._mark()
        if self._pace is not None:
            self._coded_seconds = self._pace.clock.coded_seconds

    def synchronised(self) -> None:
        """Note that all gradients are synchronised."""
        self._mark(came=True)

    def ends(self) -> None:
        """Note that the iteration ends, and keep its times."""
        self._mark()
        if not self.watching or len(self._marks) != 4:
            return
        if self._cuda:
            self._marks[-1].synchronize()
        begun, backward, synchronised, ended = self._marks
        ready = tuple((name, self._between(backward, at)) for name, at in self._ready)
        exchanged = self._between(backward, synchronised)
        computed = ready[-1][1] if ready else 0.0
        seconds = self._between(begun, ended)
        self.iterations.append(
            IterationTimes(seconds, ready, max(0.0, seconds - exchanged), max(0.0, exchanged - computed))
        )
        del self.iterations[:-ITERATIONS_KEPT]

    def _mark(self, *, came: bool = False) -> None:
        if self.watching:
            self._marks.append(self._now(came=came))

    def _gradient_ready(self, name: str, _gradient: Tensor) -> None:
        if self.watching:
            coded = 0.0 if self._pace is None else self._pace.clock.coded_seconds - self._coded_seconds
            self._ready.append((name, self._now() - coded if coded else self._now()))

    def _now(self, *, came: bool = False) -> Any:
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            return event
        if self._pace is None:
            return time.perf_counter()
        return self._pace.received_at if came else self._pace.clock.at

    def _between(self, first: Any, second: Any) -> float:
        if self._cuda:
            return float(first.elapsed_time(second)) / 1000
        return float(second - first)


def gaps(iterations: Sequence[IterationTimes], sizes: dict[str, int]) -> list[tuple[str, float]]:
    """Return gradients in order of readiness, each with the time in seconds since the one before it.

    Readiness is the median over iterations. Gradients that were never computed come last, with gap 0.
    """
    found: dict[str, list[float]] = {}
    for iteration in iterations:
        for name, at in iteration.ready:
            found.setdefault(name, []).append(at)
    ready = sorted((median(times), name) for name, times in found.items() if name in sizes)
    before, told = 0.0, []
    for at, name in ready:
        told.append((name, at - before))
        before = at
    return told + [(name, 0.0) for name in sizes if name not in found]
