"""The emulated inference scheduler: serves its load, and lends and asks back servers for it (Lyra section
3.3)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog

from lending.core.lending_rule import LendingRule
from punctual.client.inference import Inference
from punctual.errors import (
    ConflictError,
    ConnectionFailedError,
    InvalidRequestError,
    LimitReachedError,
    NotFoundError,
    ServerError,
)
from workers.inference_emulator.load import RequestLoad, Serving, serve
from workers.inference_emulator.order_book import Order, OrderBook

log = structlog.get_logger(__name__)

Clock = Callable[[], datetime]
_DONE_LOANS = ("done", "withdrawn", "refused")
_MOST_UNREPORTED = 2000
_FORECAST_PATIENCE_PERIODS = 0.2
"""Maximum time that a decision waits for the forecast, which the platform makes after the sample."""
_WANTED_WITHIN_PERIODS = 0.1
"""Servers are asked back for a period that has already begun; a tenth of it barely affects its mean."""
_LEAST_NOTICE = timedelta(seconds=5)
"""Minimum for short periods, as in a demo: jobs need some seconds to leave at any emulation speed."""


def utc_now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


@dataclass
class Period:
    """Observations of the current period."""

    ends_at: datetime
    #: Usage at each step, 0 to 1.
    usage: list[float] = field(default_factory=list)
    #: Largest number of missing servers.
    missing_servers: int = 0


@dataclass
class Emulator:
    """One inference cluster's scheduler. `step` may be called at any frequency; ``clock`` gives the time.

    ``asks_back``: False leaves asking back to the platform's forecast. ``uses_forecast``: lends and asks back
    by the larger of usage and the platform's forecast, with the cluster's margin. Headroom and margin are the
    operators' current settings.
    """

    inference: Inference
    name: str
    load: RequestLoad
    period_seconds: float
    book: OrderBook = field(default_factory=OrderBook)
    asks_back: bool = True
    uses_forecast: bool = True
    clock: Clock = utc_now
    began_at: datetime | None = None
    period: Period | None = None
    serving: Serving | None = None
    #: The platform's newest answer; None before the first.
    servers: Sequence[dict[str, Any]] | None = None
    _decision_due: bool = False
    _forecast_awaited_until: datetime | None = None

    def step(self) -> None:
        """Serve, report, settle orders, decide new ones.

        If the platform is unreachable, the servers last known at home serve the requests, and decisions and
        measurements are kept and sent later.
        """
        now = self.clock()
        # The curve begins with the current period, so that each reported sample is one of the curve's samples
        # and not a mean of two.
        self.began_at = self.began_at or _next_boundary(now, self.period_seconds) - self._periods(1)
        is_there = self._look()
        if self.servers is None:
            return
        self._serve(now)
        if self._measure(now):
            self._decision_due, self._forecast_awaited_until = True, None
        if not is_there:
            return
        try:
            self._report()
            self._send_orders()
            self._settle()
            if self._decision_due:
                self._decision_due = not self._decide(now)
        except (ConnectionFailedError, ServerError, LimitReachedError) as error:
            log.warning("platform is away", error=error.message)

    def _look(self) -> bool:
        try:
            self.servers = self.inference.servers(self.name)
        except (ConnectionFailedError, ServerError, LimitReachedError) as error:
            log.warning("platform is away", error=error.message)
            return False
        return True

    # --- load -----------------------------------------------------------------------------------------------

    def _serve(self, now: datetime) -> None:
        at_home = sum(row["whitelist"] == "inference" for row in self.servers or ())
        seconds = (now - (self.began_at or now)).total_seconds()
        before = 0 if self.serving is None else self.serving.missing_servers
        self.serving = serve(self.load.requests_per_second(seconds), at_home)
        if self.serving.missing_servers != before:
            log.warning(
                "servers are missing" if self.serving.missing_servers else "enough servers again",
                missing=self.serving.missing_servers,
                needed=self.serving.needed_servers,
                at_home=at_home,
            )

    def _measure(self, now: datetime) -> bool:
        """Record the usage; at the end of a period store its sample. Return whether a period has ended."""
        assert self.serving is not None
        usage = self.load.usage((now - (self.began_at or now)).total_seconds())
        over = self.period is not None and now >= self.period.ends_at
        if self.period is not None and over:
            self.book.samples.append(
                {
                    "period_ends_at": self.period.ends_at.isoformat(),
                    "usage": round(sum(self.period.usage) / len(self.period.usage), 6),
                    "shortfall_servers": self.period.missing_servers,
                    "source": self.load.source(),
                }
            )
            del self.book.samples[:-_MOST_UNREPORTED]
            self.book.save()
        if self.period is None or over:
            self.period = Period(_next_boundary(now, self.period_seconds))
        self.period.usage.append(usage)
        self.period.missing_servers = max(self.period.missing_servers, self.serving.missing_servers)
        return over

    def _report(self) -> None:
        if not self.book.samples:
            return
        try:
            self.inference.report_usage(self.name, self.book.samples)
        except InvalidRequestError as error:
            log.warning("samples refused", samples=len(self.book.samples), error=error.message)
        self.book.samples.clear()
        self.book.save()

    # --- orders ---------------------------------------------------------------------------------------------

    def _send_orders(self) -> None:
        """Send unanswered orders, under the same ids as before."""
        for order in [order for order in self.book.orders if not order.answered]:
            try:
                if order.is_loan:
                    self.inference.lend(self.name, order.id, order.servers)
                else:
                    wanted_by = datetime.fromisoformat(order.wanted_by)
                    self.inference.ask_back(self.name, order.id, order.count, wanted_by=wanted_by)
            except (InvalidRequestError, ConflictError) as error:
                # A final refusal, as lending is off or a server is down. The next decision reads the servers
                # again.
                log.warning("order refused", order=order.id, loan=order.is_loan, error=error.message)
                self.book.finish(order)
                continue
            order.answered = True
            self.book.save()

    def _settle(self) -> None:
        """Follow answered orders: confirm returned servers, remove finished orders."""
        for order in [order for order in self.book.orders if order.answered]:
            if order.is_loan:
                self._settle_loan(order)
            else:
                self._settle_reclaim(order)

    def _settle_loan(self, order: Order) -> None:
        known = next((row for row in self.inference.loan_orders(self.name) if row["id"] == order.id), None)
        if known is None or known["state"] in _DONE_LOANS:
            self.book.finish(order)

    def _settle_reclaim(self, order: Order) -> None:
        try:
            known = self.inference.reclaim_order(self.name, order.id)
        except NotFoundError:
            self.book.finish(order)
            return
        to_come = sum(row["returned_at"] is None for row in known["servers"])
        if known["begun_at"] and order.count != to_come:
            order.count = to_come
            self.book.save()
        back = [row["server"] for row in known["servers"] if row["returned_at"] and not row["confirmed_at"]]
        if back:
            self.inference.confirm(self.name, order.id, back)
            log.info("servers are back", servers=back, seconds=known["seconds_to_return"])
        if known["state"] in ("returned", "confirmed"):
            self.book.finish(order)

    def _decide(self, now: datetime) -> bool:
        """Apply the lending rule to the usage of the last period and the forecast, if there is one.

        Return False while the forecast of the next period is awaited.
        """
        settings = self.inference.cluster(self.name)
        usage, forecast = settings["standing"]["usage"], settings["standing"]["forecast"]
        if usage is None:
            return True
        if self.uses_forecast and forecast is None and self._awaits_forecast(now):
            return False
        # Read again: the servers of an offer carried out since the step began are away.
        self.servers = servers = self.inference.servers(self.name)
        at_home = [row for row in servers if row["lending_state"] == "inference"]
        offered = {name for order in self.book.orders if order.is_loan for name in order.servers}
        away = len(servers) - len(at_home) + sum(row["name"] in offered for row in at_home)
        returning = sum(row["lending_state"] == "reclaiming" for row in servers)
        asked = sum(order.count for order in self.book.reclaims())
        rule = LendingRule(
            len(servers),
            settings["headroom_fraction"],
            settings["forecast_margin_fraction"],
            settings["hysteresis_fraction"],
        )
        decision = rule.decide(
            usage["usage"],
            forecast["usage"] if self.uses_forecast and forecast is not None else None,
            on_loan=away,
            being_returned=min(away, max(returning, asked)),
            recent_peak=settings["standing"]["recent_peak"],
            settled=settings["standing"]["settled"],
        )
        if decision.reclaim and self.asks_back:
            wanted_by = now + max(_LEAST_NOTICE, self._periods(_WANTED_WITHIN_PERIODS))
            self._order(Order(str(uuid.uuid4()), count=decision.reclaim, wanted_by=wanted_by.isoformat()))
        elif decision.lend:
            idle = [row for row in at_home if row["state"] == "up" and not row["serves"]]
            names = [row["name"] for row in idle if row["name"] not in offered]
            self._offer(names[: decision.lend])
        return True

    def _awaits_forecast(self, now: datetime) -> bool:
        if self._forecast_awaited_until is None:
            self._forecast_awaited_until = now + self._periods(_FORECAST_PATIENCE_PERIODS)
        return now < self._forecast_awaited_until

    def _periods(self, count: float) -> timedelta:
        return timedelta(seconds=count * self.period_seconds)

    def _offer(self, names: list[str]) -> None:
        if names:
            self._order(Order(str(uuid.uuid4()), servers=names))

    def _order(self, order: Order) -> None:
        log.info("order", lend=order.servers, ask_back=order.count)
        self.book.add(order)
        self._send_orders()


def _next_boundary(now: datetime, period_seconds: float) -> datetime:
    """Return the end of the period that contains ``now``; periods begin at multiples of their length."""
    ended = now.timestamp() // period_seconds
    return datetime.fromtimestamp((ended + 1) * period_seconds, tz=UTC)
