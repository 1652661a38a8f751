"""Metrics of the balance of task loads among workers, for each iteration."""

from __future__ import annotations

import torch
import torch.distributed as dist

from moe.moesys.tasks import imbalance
from workers.runtime.data.task_order import TaskOrder
from workers.runtime.process_group import sum_beside


class TaskTimes:
    """Exchanges the computing times of the previous iteration among all ranks; does nothing without tasks."""

    def __init__(
        self, order: TaskOrder | None, group: dist.ProcessGroup | None, *, rank: int, world_size: int
    ) -> None:
        self._group, self._rank, self._world_size = group, rank, world_size
        self._imbalance = None if order is None else imbalance(order.loads(world_size))
        self._own_seconds: float | None = None
        self._seconds = torch.empty(0)
        self._work: dist.Work | None = None
        if order is not None and rank == 0:
            order.log_plan(world_size)

    def begin(self) -> None:
        """Start to exchange the times."""
        if self._imbalance is None:
            return
        self._seconds = torch.zeros(self._world_size, dtype=torch.float64)
        self._seconds[self._rank] = self._own_seconds or 0.0
        self._work = sum_beside(self._seconds, self._group) if self._world_size > 1 else None

    def end(self, own_seconds: float) -> dict[str, float]:
        """Return the metrics: largest over mean load, and after the first iteration, the seconds of the
        busiest worker and the mean share of this time in which workers were idle.

        Args:
            own_seconds: this rank's computing time in the current iteration.
        """
        if self._imbalance is None:
            return {}
        if self._work is not None:
            self._work.wait()
        metrics = {"tasks/largest_load": self._imbalance}
        if self._own_seconds is not None:
            busiest = float(self._seconds.max())
            metrics["tasks/busiest_seconds"] = busiest
            metrics["tasks/idle_share"] = 1.0 - float(self._seconds.mean()) / busiest if busiest else 0.0
        self._own_seconds = own_seconds
        return metrics
