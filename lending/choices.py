"""Where orders to lend servers and to give them back stand, and who gave them (Lyra section 3.3)."""

from __future__ import annotations

from django.db import models


class ScheduledBy(models.TextChoices):
    """Who reports an inference cluster's usage, lends its servers and asks them back: a client of the REST
    API, or the platform for the cluster's deployments."""

    SCHEDULER = "scheduler", "Its own scheduler"
    DEPLOYMENTS = "deployments", "Its deployments"


class OrderSource(models.TextChoices):
    """Who moves servers: the inference scheduler, an operator by hand, or the platform by its forecast."""

    SCHEDULER = "scheduler", "Inference scheduler"
    OPERATOR = "operator", "Operator"
    FORECAST = "forecast", "Forecast"


class LoanState(models.TextChoices):
    """`pending` until carried out; `withdrawn` when the servers were asked back first; `refused` with a
    reason."""

    PENDING = "pending", "Pending"
    DONE = "done", "Done"
    WITHDRAWN = "withdrawn", "Withdrawn"
    REFUSED = "refused", "Refused"


class ReclaimState(models.TextChoices):
    """`pending` until servers are chosen, `reclaiming` until all are empty and back, then confirmed by their
    scheduler."""

    PENDING = "pending", "Pending"
    RECLAIMING = "reclaiming", "Reclaiming"
    RETURNED = "returned", "Returned"
    CONFIRMED = "confirmed", "Confirmed"


OPEN_RECLAIM_STATES = (ReclaimState.PENDING, ReclaimState.RECLAIMING)
