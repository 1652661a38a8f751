"""Copies of layers from host memory to the device, one after the other, beside the computation."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor


class Transfers(Protocol):
    """Copies, and times of the computation that waits for them. Marks and transfers are opaque."""

    def begin(self, source: Tensor, target: Tensor) -> Any:
        """Copy once the computation begun so far and all earlier copies are done."""

    def arrive(self, transfer: Any) -> None:
        """Let the computation continue once the copy is done. Raise the copy's error, if any."""

    def seconds(self, transfer: Any) -> float:
        """Return the seconds of a copy; wait for its end."""

    def mark(self) -> Any:
        """Return a mark of the computation's current time."""

    def between(self, earlier: Any, later: Any) -> float:
        """Return the seconds between two marks."""

    def close(self) -> None:
        """Begin no more copies."""


class ThreadTransfers:
    """Copies by a thread, for a CPU device that stands for an accelerator."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ring")

    def begin(self, source: Tensor, target: Tensor) -> Future[float]:
        """Copy in the thread."""
        return self._thread.submit(self._copy, source, target)

    def arrive(self, transfer: Future[float]) -> None:
        """Wait for the thread."""
        transfer.result()

    def seconds(self, transfer: Future[float]) -> float:
        """Return the time within the thread."""
        return transfer.result()

    def mark(self) -> float:
        """Return the time now."""
        return time.perf_counter()

    def between(self, earlier: float, later: float) -> float:
        """Return the difference."""
        return later - earlier

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _copy(self, source: Tensor, target: Tensor) -> float:
        began_at = time.perf_counter()
        # Unlike torch's copy, NumPy's does not use torch's threads.
        np.copyto(target.numpy(), source.numpy())
        return time.perf_counter() - began_at


class StreamTransfers:
    """Copies on a separate CUDA stream, from page-locked memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def begin(self, source: Tensor, target: Tensor) -> tuple[Any, Any]:
        """Copy on the stream."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            began = self.mark()
            target.copy_(source, non_blocking=True)
            return began, self.mark()

    def arrive(self, transfer: tuple[Any, Any]) -> None:
        """Let the stream of the computation wait."""
        torch.cuda.current_stream(self._device).wait_event(transfer[1])

    def seconds(self, transfer: tuple[Any, Any]) -> float:
        """Return the time on the stream."""
        return self.between(*transfer)

    def mark(self) -> Any:
        """Record an event on the current stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def between(self, earlier: Any, later: Any) -> float:
        """Wait for the later event."""
        later.synchronize()
        return float(earlier.elapsed_time(later)) / 1000.0

    def close(self) -> None:
        """Do nothing: streams end with the process."""
