"""Decided orders, stored before they are sent, so that a crash in between neither loses nor doubles any."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass
class Order:
    """One order with its permanent id. ``servers`` is empty for a reclaim, ``count`` 0 for a loan.

    ``count``: servers not returned yet.
    """

    id: str
    servers: list[str] = field(default_factory=list)
    count: int = 0
    wanted_by: str = ""
    #: Whether the platform has accepted it.
    answered: bool = False

    @property
    def is_loan(self) -> bool:
        return bool(self.servers)


class OrderBook:
    """Unfinished orders, oldest first, and unreported samples; stored in ``file`` unless it is None."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self.orders: list[Order] = []
        self.samples: list[dict[str, object]] = []
        if file is not None and file.exists():
            kept = json.loads(file.read_text(encoding="utf-8"))
            self.orders = [Order(**order) for order in kept["orders"]]
            self.samples = list(kept["samples"])

    def add(self, order: Order) -> None:
        """Store an order that will be sent."""
        self.orders.append(order)
        self.save()

    def finish(self, order: Order) -> None:
        """Remove a finished order."""
        self.orders.remove(order)
        self.save()

    def reclaims(self) -> list[Order]:
        """Return orders whose servers are not all back yet."""
        return [order for order in self.orders if not order.is_loan]

    def save(self) -> None:
        """Replace the file atomically."""
        if self._file is None:
            return
        text = json.dumps({"orders": [asdict(order) for order in self.orders], "samples": self.samples})
        fresh = self._file.with_suffix(".new")
        with fresh.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._file)
