"""The lending rule: how many servers an inference cluster can spare (Lyra sections 3.4, 3.6 and 3.7.1).

The inference side decides how many servers move and when. It keeps the servers that the larger of measured
and forecast usage needs, and a reserve that is never lent. The forecast covers the coming period, so servers
are reclaimed before demand rises.

A job that grows onto a server and soon has to leave it gains nothing. Two additions prevent such short loans
when usage oscillates around a whole number of servers: a hysteresis threshold, and a minimum time between
moves of a server. Both are ours; the published rule has neither (decision 0016).

Usage is the share of the inference cluster's GPUs that serve requests, 0 to 1. Containers are assumed to be
consolidated, so a share of GPUs is a number of whole servers.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, isfinite

HEADROOM_FRACTION = 0.02
"""Published share of the cluster that is never lent: about the median rise of usage in five minutes (Lyra
section 3.7.1)."""

HYSTERESIS_FRACTION = 0.02
"""Default for live clusters: the median rise of usage in five minutes, as for the headroom."""

ROUNDING_GUARD = 1e-9
"""Subtracted before rounding up, against float error: 0.6 of 520 servers is 312, not 313."""


@dataclass(frozen=True, slots=True)
class LendingRule:
    """The number of servers that an inference cluster of ``servers`` servers may lend.

    ``headroom_fraction``: share of the servers that is never lent. ``forecast_margin_fraction``: share of the
    cluster added to every forecast; 0 is the published rule, a high quantile of the forecaster's errors makes
    shortfalls rare. ``hysteresis_fraction``: a server is lent only if usage could rise by this share of the
    cluster before the server had to be reclaimed; 0 is the published rule.

    Raises ValueError for a negative number of servers or a fraction outside 0 to 1.
    """

    servers: int
    headroom_fraction: float = HEADROOM_FRACTION
    forecast_margin_fraction: float = 0.0
    hysteresis_fraction: float = 0.0

    def __post_init__(self) -> None:
        if self.servers < 0:
            raise ValueError(f"an inference cluster cannot have {self.servers} servers")
        for name in ("headroom_fraction", "forecast_margin_fraction", "hysteresis_fraction"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be from 0 to 1")

    @property
    def reserve(self) -> int:
        """Servers that are never lent."""
        return _whole(self.headroom_fraction * self.servers)

    def need(self, usage: float, forecast: float | None = None) -> int:
        """Return the number of servers needed for the larger of ``usage`` and ``forecast`` (None: no
        forecast).

        Forecasts are clipped to 0 to 1. Raises ValueError for usage outside 0 to 1 and for a forecast that is
        not finite.
        """
        return min(self.servers, _whole(self._expected(usage, forecast) * self.servers))

    def target(self, usage: float, forecast: float | None = None) -> int:
        """Return how many servers may be on loan. Raises ValueError as `need` does."""
        return max(0, self.servers - self.reserve - self.need(usage, forecast))

    def worth_lending(
        self, usage: float, forecast: float | None = None, recent_peak: float | None = None
    ) -> int:
        """Return how many servers should be on loan: those of `target` that need not be asked back soon.

        ``recent_peak``: the highest usage measured or expected within the minimum hold time; None if there is
        no such time. Raises ValueError as `need` does, and for a peak outside 0 to 1.
        """
        expected = self._expected(usage, forecast)
        if recent_peak is not None:
            expected = max(expected, _checked_usage(recent_peak))
        kept = min(self.servers, _whole((expected + self.hysteresis_fraction) * self.servers))
        return min(self.target(usage, forecast), max(0, self.servers - self.reserve - kept))

    def _expected(self, usage: float, forecast: float | None) -> float:
        """Return the larger of measured usage and forecast with its margin."""
        expected = _checked_usage(usage)
        if forecast is None:
            return expected
        if not isfinite(forecast):
            raise ValueError(f"a forecast of {forecast} is none; leave it out")
        return max(expected, forecast + self.forecast_margin_fraction)

    def recent_peak(self, measured: float | None, expected: float | None) -> float:
        """Return ``recent_peak`` of `worth_lending` from the highest measured usage and the highest forecast
        within the minimum hold time (None: no value), 0 to 1."""
        shares = (measured or 0.0, 0.0 if expected is None else expected + self.forecast_margin_fraction)
        return min(1.0, max(0.0, *shares))

    def decide(
        self,
        usage: float,
        forecast: float | None = None,
        *,
        on_loan: int,
        being_returned: int = 0,
        recent_peak: float | None = None,
        settled: int | None = None,
    ) -> LendingDecision:
        """Return how many servers to lend or to ask back now.

        ``on_loan`` counts all servers that are away, ``being_returned`` those of them already asked back.
        ``recent_peak``: see `worth_lending`. ``settled``: number of servers that have been on loan for the
        minimum hold time; None: all. Measured usage asks back as many servers as it needs, a forecast only
        settled ones.

        Raises ValueError as `need` does, and for counts that do not fit the cluster or each other.
        """
        if not 0 <= being_returned <= on_loan <= self.servers:
            raise ValueError(
                f"of {self.servers} servers, {on_loan} on loan with {being_returned} being returned cannot be"
            )
        staying = on_loan - being_returned
        if settled is not None and not 0 <= settled <= self.servers:
            raise ValueError(f"of {self.servers} servers, {settled} cannot have been on loan for long")
        target = self.target(usage, forecast)
        measured = max(0, staying - self.target(usage))
        foreseen = max(0, staying - target) - measured
        if settled is not None:
            foreseen = min(foreseen, max(0, settled - measured))
        return LendingDecision(
            need=self.need(usage, forecast),
            reserve=self.reserve,
            target=target,
            # Servers being returned are not at home yet, so they count as on loan.
            lend=max(0, self.worth_lending(usage, forecast, recent_peak) - on_loan),
            reclaim=measured + foreseen,
            shortfall=self.shortfall(usage, on_loan),
        )

    def shortfall(self, usage: float, on_loan: int) -> int:
        """Return how many servers are missing at home while ``on_loan`` are away. Raises ValueError for usage
        outside 0 to 1."""
        return max(0, _whole(_checked_usage(usage) * self.servers) - (self.servers - on_loan))


@dataclass(frozen=True, slots=True)
class LendingDecision:
    """Decision of the lending rule, in servers.

    At most one of ``lend`` and ``reclaim`` is above 0. ``shortfall``: servers missing now for the measured
    usage, which stands for violated latency targets.
    """

    need: int
    reserve: int
    target: int
    lend: int
    reclaim: int
    shortfall: int


def _whole(servers: float) -> int:
    return max(0, ceil(servers - ROUNDING_GUARD))


def _checked_usage(usage: float) -> float:
    # The comparison is also false for NaN.
    if not 0.0 <= usage <= 1.0:
        raise ValueError(f"usage is {usage}; it is a share of GPUs, from 0 to 1")
    return usage
