"""Results of lending in a simulation: servers on loan over time, and each reclaim with its cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from scheduling.core.question.snapshot import FloatArray, IntArray

NO_ROWS: IntArray = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class ReclaimRecord:
    """One reclaim: servers ``wanted`` and ``returned``; of the latter, ``idle`` ones and those of the
    ``flexible`` group; jobs ``preempted`` of those ``running``; ``collateral_gpus``: GPUs that preempted jobs
    gave up on servers not returned. ``ahead``: the forecast asked for it, while measured usage
    alone would not have."""

    at: float
    wanted: int
    returned: int
    idle: int
    flexible: int
    preempted: int
    running: int
    collateral_gpus: int
    ahead: bool = False


@dataclass(frozen=True)
class LoanHistory:
    """One row per orchestrator period. ``usage``: mean of the inference cluster over the period before;
    ``forecast``: for the next period, NaN if there was none. ``on_loan``: servers after the decision;
    ``shortfall``: servers that inference lacked at that time. ``owned_gpus_busy`` and ``lent_gpus_busy``:
    GPUs that training jobs held at the end of the period, before the decision. ``headroom``: share of the
    cluster that is never lent. ``owned_gpus``: GPUs of the training cluster. ``borrowers``: rows of the jobs
    seen on servers on loan."""

    servers: int
    time: FloatArray
    usage: FloatArray
    forecast: FloatArray
    on_loan: IntArray
    shortfall: IntArray
    owned_gpus_busy: IntArray
    lent_gpus_busy: IntArray
    reclaims: tuple[ReclaimRecord, ...]
    headroom: float = 0.0
    gpus_per_server: int = 8
    owned_gpus: int = 0
    borrowers: IntArray = field(default_factory=lambda: NO_ROWS)

    @classmethod
    def of(
        cls,
        servers: int,
        rows: Sequence[tuple[float, ...]],
        reclaims: tuple[ReclaimRecord, ...],
        *,
        headroom: float = 0.0,
        gpus_per_server: int = 8,
        owned_gpus: int = 0,
        borrowers: IntArray = NO_ROWS,
    ) -> LoanHistory:
        """Make the history of rows in the order of the fields."""
        table = np.array(rows, dtype=np.float64).reshape(len(rows), 7)
        whole = table[:, 3:].astype(np.int64)
        return cls(
            servers, table[:, 0], table[:, 1], table[:, 2], whole[:, 0], whole[:, 1], whole[:, 2],
            whole[:, 3],
            reclaims, headroom, gpus_per_server, owned_gpus, borrowers,
        )  # fmt: skip

    @property
    def on_loan_before(self) -> IntArray:
        """Servers on loan during each period, before its decision."""
        return np.concatenate((np.zeros(1, dtype=np.int64), self.on_loan))[: self.on_loan.size]
