"""How many servers the inference cluster can spare (Lyra sections 3.4, 3.6 and 3.7.1; spec 2.2).

The inference side decides how many servers move and when. It keeps what the larger of measured and forecast usage
needs, and a reserve that is never lent. Because the forecast covers the coming period, servers are asked back before
demand has risen.

Usage is the share of the inference cluster's GPUs that serve requests, 0 to 1. Containers are assumed to be
consolidated, so that a share of GPUs is a number of whole servers.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, isfinite

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

HEADROOM_FRACTION = 0.02
"""Published share of the cluster that is never lent: about the median rise of usage in five minutes (Lyra section 3.7.1)."""

ROUNDING_GUARD = 1e-9
"""0.6 of 520 servers is 312, not 313: products that float error lifts above a whole number still round to it."""


@dataclass(frozen=True, slots=True)
class LendingRule:
    """What an inference cluster of ``servers`` servers may lend.

    ``headroom_fraction`` of them is never lent. ``forecast_margin_fraction`` of the cluster is added to every
    forecast: 0 is the published rule, a high quantile of the forecaster's errors makes a missing server rare.

    Raises ValueError for a negative number of servers or a fraction outside 0 to 1.
    """

    servers: int
    headroom_fraction: float = HEADROOM_FRACTION
    forecast_margin_fraction: float = 0.0

    def __post_init__(self) -> None:
        if self.servers < 0:
            raise ValueError(f"an inference cluster cannot have {self.servers} servers")
        for name in ("headroom_fraction", "forecast_margin_fraction"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be from 0 to 1")

    @property
    def reserve(self) -> int:
        """Servers that are never lent."""
        return _whole(self.headroom_fraction * self.servers)

    def need(self, usage: float, forecast: float | None = None) -> int:
        """Servers that serve requests at the larger of ``usage`` and ``forecast``; None where there is no forecast.

        Forecasts beyond 0 and 1 count as these. Raises ValueError for usage outside 0 to 1 or a number that is not finite.
        """
        expected = _checked_usage(usage)
        if forecast is not None:
            if not isfinite(forecast):
                raise ValueError(f"a forecast of {forecast} is none; leave it out")
            expected = max(expected, forecast + self.forecast_margin_fraction)
        return min(self.servers, _whole(expected * self.servers))

    def target(self, usage: float, forecast: float | None = None) -> int:
        """Servers that should be on loan. Raises ValueError as `need` does."""
        return max(0, self.servers - self.reserve - self.need(usage, forecast))

    def decide(
        self, usage: float, forecast: float | None = None, *, on_loan: int, being_returned: int = 0
    ) -> LendingDecision:
        """How many servers to lend or to ask back now.

        ``on_loan`` counts all servers that are away, ``being_returned`` those of them that are asked back already.

        Raises ValueError as `need` does, and when the two counts do not fit the cluster or each other.
        """
        if not 0 <= being_returned <= on_loan <= self.servers:
            raise ValueError(
                f"of {self.servers} servers, {on_loan} on loan with {being_returned} being returned cannot be"
            )
        target = self.target(usage, forecast)
        delta = target - (on_loan - being_returned)
        return LendingDecision(
            need=self.need(usage, forecast),
            reserve=self.reserve,
            target=target,
            delta=delta,
            # What is on its way back is not at home yet.
            lend=max(0, target - on_loan),
            reclaim=max(0, -delta),
            shortfall=self.shortfall(usage, on_loan),
        )

    def shortfall(self, usage: float, on_loan: int) -> int:
        """Servers missing at home while so many are away. Raises ValueError for usage outside 0 to 1."""
        return max(0, _whole(_checked_usage(usage) * self.servers) - (self.servers - on_loan))

    def targets(self, usage: ArrayLike, forecasts: ArrayLike | None = None) -> IntArray:
        """`target` at many instants, shape (n,); a forecast that is not a number is none.

        Raises ValueError for usage outside 0 to 1 or shapes that do not fit.
        """
        expected = _checked_usages(usage)
        if forecasts is not None:
            expected = np.fmax(
                expected, np.asarray(forecasts, dtype=np.float64) + self.forecast_margin_fraction
            )
        return np.maximum(0, self.servers - self.reserve - self._whole_servers(expected))

    def shortfalls(self, usage: ArrayLike, on_loan: ArrayLike) -> IntArray:
        """`shortfall` at many instants, shape (n,). Raises ValueError for usage outside 0 to 1."""
        at_home = self.servers - np.asarray(on_loan, dtype=np.int64)
        return np.maximum(0, self._whole_servers(_checked_usages(usage)) - at_home)

    def _whole_servers(self, usage: FloatArray) -> IntArray:
        servers = np.ceil(np.clip(usage, 0.0, 1.0) * self.servers - ROUNDING_GUARD)
        return np.maximum(0.0, servers).astype(np.int64)


@dataclass(frozen=True, slots=True)
class LendingDecision:
    """What the inference side wants now, in servers.

    ``delta`` is ``target`` less what is on loan and not being returned. At most one of ``lend`` and ``reclaim`` is above 0.
    ``shortfall``: servers missing at this moment for the measured usage, which stands for violated latency targets.
    """

    need: int
    reserve: int
    target: int
    delta: int
    lend: int
    reclaim: int
    shortfall: int


def _whole(servers: float) -> int:
    return max(0, ceil(servers - ROUNDING_GUARD))


def _checked_usage(usage: float) -> float:
    # Also refuses what is not a number, which compares false.
    if not 0.0 <= usage <= 1.0:
        raise ValueError(f"usage is {usage}; it is a share of GPUs, from 0 to 1")
    return usage


def _checked_usages(usage: ArrayLike) -> FloatArray:
    values = np.asarray(usage, dtype=np.float64)
    wrong = ~((values >= 0.0) & (values <= 1.0))
    if wrong.any():
        raise ValueError(f"usage is {values[wrong][0]}; it is a share of GPUs, from 0 to 1")
    return values
