"""A process group for exchanges of sparse gradients that counts and times what comes from others."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from communication.hooks.device_time import courses_of


class Wire:
    """Some ranks, including this one.

    Attributes:
        received_bytes: from others, since creation. seconds: waits for others.
        spans: begin and end of each wait; the caller clears them.
        course: of its exchanges, which reports to the device's clock.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self.rank, self.size = group.rank(), group.size()
        self.received_bytes = 0
        self.seconds = 0.0
        self.spans: list[tuple[float, float]] = []
        self._courses = courses_of(group)
        self.begin()

    def begin(self) -> None:
        """Begin a sequence of exchanges."""
        self.course = self._courses()
        self.course.goes_on()

    def numbers(self, own: Sequence[int], device: torch.device) -> list[list[int]]:
        """Gather numbers, equally many from each rank. The host needs them as the sizes of what follows."""
        gathered = torch.empty(self.size * len(own), dtype=torch.int64, device=device)
        begun = time.perf_counter()
        dist.all_gather_single(gathered, torch.tensor(own, device=device), group=self._group)
        by_rank = gathered.view(self.size, -1).tolist()
        self._came((self.size - 1) * 8 * len(own), begun)
        return list(by_rank)

    def to_each(self, packets: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
        """Send a packet to each rank, including this one; return those from all. ``sizes``: of these."""
        joined = torch.cat(list(packets))
        received = joined.new_empty(sum(sizes))
        begun = time.perf_counter()
        dist.all_to_all_single(
            received, joined, list(sizes), [len(each) for each in packets], group=self._group
        )
        self._came(sum(sizes) - sizes[self.rank], begun)
        return list(received.split(list(sizes)))

    def to_all(self, packet: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        """Gather all ranks' packets, padded to the longest. ``sizes``: of all."""
        longest = max(sizes)
        padded = packet.new_zeros(longest)
        padded[: len(packet)] = packet
        received = packet.new_empty(self.size * longest)
        begun = time.perf_counter()
        dist.all_gather_single(received, padded, group=self._group)
        self._came((self.size - 1) * longest, begun)
        return [row[:size] for row, size in zip(received.view(self.size, -1), sizes, strict=True)]

    def all_reduce(self, values: Tensor) -> None:
        """Sum over all ranks, in place; counts the bytes of a ring."""
        begun = time.perf_counter()
        dist.all_reduce(values, group=self._group)
        self._came(2 * (self.size - 1) * values.nbytes // self.size, begun)

    def _came(self, count: int, begun: float) -> None:
        self.course.asked()
        self.course.came()
        self.received_bytes += count
        ended = time.perf_counter()
        self.seconds += ended - begun
        self.spans.append((begun, ended))
