"""The lending rule: how many servers the inference cluster can spare (Lyra sections 3.4, 3.6 and 3.7.1; spec
2.2).

The inference side decides how many servers move and when. It keeps what the larger of measured and forecast
usage needs, and a reserve that is never lent. Because the forecast covers the coming period, servers are
asked back before demand has risen.

A server is not worth lending for a moment: a job that grows onto it and has to leave again has gained
nothing. So two thresholds keep usage that wobbles about a whole number of servers from moving one to and fro,
and what moved stays for a while. Both are ours; the published rule is the one without (decision 0016).

Usage is the share of the inference cluster's GPUs that serve requests, 0 to 1. Containers are assumed to be
consolidated, so that a share of GPUs is a number of whole servers.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, isfinite

HEADROOM_FRACTION = 0.02
"""Published share of the cluster that is never lent: about the median rise of usage in five minutes (Lyra
section 3.7.1)."""

HYSTERESIS_FRACTION = 0.02
"""What live clusters begin with: as much as usage rises in five minutes at the median (as the headroom)."""

ROUNDING_GUARD = 1e-9
"""0.6 of 520 servers is 312, not 313: products that float error lifts above a whole number still round to
it."""


@dataclass(frozen=True, slots=True)
class LendingRule:
    """What an inference cluster of ``servers`` servers may lend.

    ``headroom_fraction`` of them is never lent. ``forecast_margin_fraction`` of the cluster is added to every
    forecast: 0 is the published rule, a high quantile of the forecaster's errors makes a missing server rare.
    ``hysteresis_fraction``: a server is lent only where usage could rise by so much of the cluster before it
    had to be asked back; 0 is the published rule.

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
        """Servers that serve requests at the larger of ``usage`` and ``forecast``; None where there is no
        forecast.

        Forecasts beyond 0 and 1 count as these. Raises ValueError for usage outside 0 to 1 or a number that
        is not finite.
        """
        return min(self.servers, _whole(self._expected(usage, forecast) * self.servers))

    def target(self, usage: float, forecast: float | None = None) -> int:
        """Servers that may be on loan. Raises ValueError as `need` does."""
        return max(0, self.servers - self.reserve - self.need(usage, forecast))

    def worth_lending(
        self, usage: float, forecast: float | None = None, recent_peak: float | None = None
    ) -> int:
        """Servers that should be on loan: of `target`, those that need not be asked back soon.

        ``recent_peak``: the highest share of GPUs that was in use or expected in the least time that a server
        stays where it is; None for no such time. Raises ValueError as `need` does, and for a peak outside 0
        to 1.
        """
        expected = self._expected(usage, forecast)
        if recent_peak is not None:
            expected = max(expected, _checked_usage(recent_peak))
        kept = min(self.servers, _whole((expected + self.hysteresis_fraction) * self.servers))
        return min(self.target(usage, forecast), max(0, self.servers - self.reserve - kept))

    def _expected(self, usage: float, forecast: float | None) -> float:
        """The larger of measured usage and forecast."""
        expected = _checked_usage(usage)
        if forecast is None:
            return expected
        if not isfinite(forecast):
            raise ValueError(f"a forecast of {forecast} is none; leave it out")
        return max(expected, forecast + self.forecast_margin_fraction)

    def recent_peak(self, measured: float | None, expected: float | None) -> float:
        """The ``recent_peak`` of `worth_lending`: from the highest share that was measured, and the highest
        that was forecast, in the least time that a server stays; None where nothing was."""
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
        """How many servers to lend or to ask back now.

        ``on_loan`` counts all servers that are away, ``being_returned`` those of them that are asked back
        already. ``recent_peak``: see `worth_lending`. ``settled``: how many of those on loan have been there
        for their least time; a forecast alone asks no others back, measured usage takes what it needs. None:
        all of them.

        Raises ValueError as `need` does, and when the counts do not fit the cluster or each other.
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
            delta=target - staying,
            # What is on its way back is not at home yet.
            lend=max(0, self.worth_lending(usage, forecast, recent_peak) - on_loan),
            reclaim=measured + foreseen,
            shortfall=self.shortfall(usage, on_loan),
        )

    def shortfall(self, usage: float, on_loan: int) -> int:
        """Servers missing at home while so many are away. Raises ValueError for usage outside 0 to 1."""
        return max(0, _whole(_checked_usage(usage) * self.servers) - (self.servers - on_loan))


@dataclass(frozen=True, slots=True)
class LendingDecision:
    """What the inference side wants now, in servers.

    ``delta`` is ``target`` less what is on loan and not being returned. At most one of ``lend`` and
    ``reclaim`` is above 0. ``shortfall``: servers missing at this moment for the measured usage, which stands
    for violated latency targets.
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
