"""States and issuers of loan and reclaim orders (Lyra section 3.3)."""

from __future__ import annotations

from django.db import models


class ScheduledBy(models.TextChoices):
    """The party that reports an inference cluster's usage, lends its servers and reclaims them: a client of
    the REST API, or the platform on behalf of the cluster's deployments."""

    SCHEDULER = "scheduler", "Its own scheduler"
    DEPLOYMENTS = "deployments", "Its deployments"


class OrderSource(models.TextChoices):
    """The issuer of an order: the inference scheduler, an operator, or the platform by its forecast."""

    SCHEDULER = "scheduler", "Inference scheduler"
    OPERATOR = "operator", "Operator"
    FORECAST = "forecast", "Forecast"


class LoanState(models.TextChoices):
    """State of a loan order: `pending` until carried out; `withdrawn` when its servers were reclaimed first;
    `refused` with a reason."""

    PENDING = "pending", "Pending"
    DONE = "done", "Done"
    WITHDRAWN = "withdrawn", "Withdrawn"
    REFUSED = "refused", "Refused"


class ReclaimState(models.TextChoices):
    """State of a reclaim order: `pending` until servers are chosen, `reclaiming` until all of them are empty
    and back, `returned`, then `confirmed` by the inference scheduler."""

    PENDING = "pending", "Pending"
    RECLAIMING = "reclaiming", "Reclaiming"
    RETURNED = "returned", "Returned"
    CONFIRMED = "confirmed", "Confirmed"


OPEN_RECLAIM_STATES = (ReclaimState.PENDING, ReclaimState.RECLAIMING)
