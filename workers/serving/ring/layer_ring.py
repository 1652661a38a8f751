"""A ring of layers: some stay on the device, the others are copied there ahead of their computation.

A layer is entered when one of its modules is called, and left when another layer is entered. Its section is
then filled with the next layer that is not on the device, in the order of the previous pass.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from moe.moesys.serving_ring import RingTimes, ServingRing
from workers.serving.errors import NotServingError
from workers.serving.ring.layers import RingLayer, nothing_like
from workers.serving.ring.transfers import StreamTransfers, ThreadTransfers, Transfers


class RingError(NotServingError):
    """A layer could not be copied to the device. All further calls fail."""


class LayerRing:
    """Manages the parameters of layers. One thread computes.

    Attributes:
        plan: the layers on the device.
        failure: why copying layers has failed; empty: it has not.
        unexpected: number of layers entered out of order, and so not copied ahead.
    """

    def __init__(
        self,
        layers: Sequence[RingLayer],
        plan: ServingRing,
        device: torch.device,
        transfers: Transfers | None = None,
    ) -> None:
        """Allocate all sections, fill them, and copy each layer once.

        Args:
            layers: with parameters in host memory, in their order.

        Raises:
            RuntimeError: memory cannot be allocated.
            RingError: a copy on the device differs from host memory.
        """
        self.plan, self.failure, self.unexpected = plan, "", 0
        self._layers = layers
        self._transfers: Transfers = transfers or (
            StreamTransfers(device) if device.type == "cuda" else ThreadTransfers()
        )
        self._lock = threading.Lock()
        self._counts = {"calls": 0, "entered": 0, "loads": 0}
        self._seconds = {"copy_seconds": 0.0, "stall_seconds": 0.0, "compute_seconds": 0.0}
        self._sections = [
            torch.empty(plan.section_bytes, dtype=torch.uint8, device=device) for _ in range(plan.sections)
        ]
        self._nothing = [
            tuple(nothing_like(parameter, device) for parameter in layer.parameters) for layer in layers
        ]
        self._pinned = frozenset(plan.pinned)
        self._host: dict[int, Tensor] = {}
        for number in plan.pinned:
            section = self._sections.pop()
            layers[number].pack(section)
            _bind(layers[number], layers[number].views(section))
        for number in range(len(layers)):
            if number not in self._pinned:
                self._host[number] = self._take_to_host(number, is_pinned=device.type == "cuda")
        self._views = {
            number: [layers[number].views(section) for section in self._sections] for number in self._host
        }
        #: The current layer, and the last known successor of each layer.
        self._current: int | None = None
        self._after = [(number + 1) % len(layers) for number in range(len(layers))]
        self._first = self._entered = 0
        #: Sections of layers that are on the device or being copied, in the order of their copies.
        self._held: dict[int, int] = {}
        self._coming: dict[int, Any] = {}
        self._free = list(range(len(self._sections)))
        self._tail = 0
        self._arrived: list[Any] = []
        self._waits: list[tuple[Any, Any]] = []
        self._try_all()
        for number, layer in enumerate(layers):
            for part in layer.module.modules():
                part.forward = partial(self._run, number, part.forward)

    @property
    def addresses(self) -> tuple[int, ...]:
        """Addresses of the ring's sections, which never move."""
        return tuple(section.data_ptr() for section in self._sections)

    def times(self) -> RingTimes:
        """Return the times measured so far."""
        with self._lock:
            counts, seconds = dict(self._counts), dict(self._seconds)
        load_seconds = seconds["copy_seconds"] / counts["loads"]
        if not counts["calls"]:
            return RingTimes(load_seconds)
        return RingTimes(
            load_seconds,
            seconds["compute_seconds"] / counts["entered"],
            counts["entered"] / counts["calls"] / self.plan.layers,
        )

    def report(self) -> dict[str, Any]:
        """Return plan and counts, as the worker reports them."""
        with self._lock:
            return {
                "layers": self.plan.layers,
                "sections": self.plan.sections,
                "section_bytes": self.plan.section_bytes,
                "other_bytes": self.plan.other_bytes,
                "unexpected": self.unexpected,
                **self._counts,
                **self._seconds,
            }

    @contextmanager
    def call(self) -> Iterator[None]:
        """Surround a call of the function.

        Raises:
            RingError: copying a layer has failed, in this call or before.
        """
        if self.failure:
            raise RingError(self.failure)
        began = self._transfers.mark()
        self._entered = 0
        try:
            yield
        finally:
            ended = self._transfers.mark()
            self._leave()
            if not self.failure:
                self._expect(self._first)
                self._count_call(began, ended)

    def close(self) -> None:
        """End the copies."""
        self._transfers.close()

    # -- passes

    def _run(self, number: int, forward: Any, *arguments: Any, **keywords: Any) -> Any:
        if torch.compiler.is_compiling():
            # Imported here, since it imports the compiler.
            from punctual.moe.compiling import run_uncompiled

            return run_uncompiled(self._run, number, forward, *arguments, **keywords)
        if number != self._current:
            self._enter(number)
        return forward(*arguments, **keywords)

    def _enter(self, number: int) -> None:
        if self._current is None:
            self._first = number
        else:
            self._after[self._current] = number
        self._leave()
        self._entered += 1
        if number in self._pinned:
            self._fill()
        else:
            self.unexpected += number not in self._held
            self._expect(number)
            self._await(number)
            _bind(self._layers[number], self._views[number][self._held[number]])
        self._current = number

    def _leave(self) -> None:
        """Free the section of the current layer."""
        number, self._current = self._current, None
        if number is not None and number in self._held:
            _bind(self._layers[number], self._nothing[number])
            self._free.append(self._held.pop(number))

    def _expect(self, number: int) -> None:
        """Begin to copy a layer, unless that has begun, and the layers after it."""
        if number not in self._pinned and number not in self._held:
            self._free.extend(self._held.values())
            self._held.clear()
            self._coming.clear()
            self._load(number)
        self._fill()

    def _fill(self) -> None:
        """Begin to copy the following layers into free sections."""
        while self._free:
            following = self._find_following()
            if following is None:
                return
            self._load(following)

    def _find_following(self) -> int | None:
        number = self._tail
        for _ in range(len(self._layers)):
            number = self._after[number]
            if number in self._host and number not in self._held:
                return number
        return None

    def _load(self, number: int) -> None:
        section = self._free.pop()
        layer = self._layers[number]
        self._coming[number] = self._transfers.begin(
            self._host[number], self._sections[section][: layer.bytes]
        )
        self._held[number] = section
        self._tail = number

    def _await(self, number: int) -> None:
        transfer = self._coming.pop(number, None)
        if transfer is None:
            return
        waits = self._transfers.mark()
        try:
            self._transfers.arrive(transfer)
        except Exception as error:
            # After any error of a copy, the layer is not on the device.
            name = self._layers[number].name
            self.failure = f"layer {name} could not be copied from host memory to the device: {error}"
            raise RingError(self.failure) from error
        self._waits.append((waits, self._transfers.mark()))
        self._arrived.append(transfer)

    # -- beginning and counting

    def _take_to_host(self, number: int, *, is_pinned: bool) -> Tensor:
        layer = self._layers[number]
        packed = torch.empty(layer.bytes, dtype=torch.uint8, pin_memory=is_pinned)
        layer.pack(packed)
        _bind(layer, self._nothing[number])
        return packed

    def _try_all(self) -> None:
        """Copy each layer once, compare it with host memory, and measure the copies."""
        for number, packed in self._host.items():
            if not self._free:
                self._free.append(self._held.pop(next(iter(self._held))))
            self._load(number)
            self._await(number)
            section = self._sections[self._held[number]][: len(packed)]
            if not torch.equal(section.cpu(), packed):
                raise RingError(
                    f"layer {self._layers[number].name} differs on the device from host memory: memory of "
                    "this server is damaged"
                )
        self._waits.clear()
        self._count_copies()
        self._free.extend(self._held.values())
        self._held.clear()
        self._tail = len(self._layers) - 1
        self._fill()

    def _count_call(self, began: Any, ended: Any) -> None:
        seconds = self._transfers.between(began, ended)
        waited = sum(self._transfers.between(*pair) for pair in self._waits)
        self._waits.clear()
        self._count_copies()
        if self._entered:
            with self._lock:
                self._counts["calls"] += 1
                self._counts["entered"] += self._entered
                self._seconds["stall_seconds"] += waited
                self._seconds["compute_seconds"] += max(0.0, seconds - waited)

    def _count_copies(self) -> None:
        copied = sum(self._transfers.seconds(transfer) for transfer in self._arrived)
        with self._lock:
            self._counts["loads"] += len(self._arrived)
            self._seconds["copy_seconds"] += copied
        self._arrived.clear()


def _bind(layer: RingLayer, tensors: Sequence[Tensor]) -> None:
    for parameter, tensor in zip(layer.parameters, tensors, strict=True):
        parameter.data = tensor
