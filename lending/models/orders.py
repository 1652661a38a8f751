"""Orders to lend servers and to give them back (Lyra section 3.3).

The client chooses the id, so sending an order again is idempotent.
"""

from __future__ import annotations

import uuid

from django.db import models
from django.db.models import F, Q
from django.utils import timezone

from cluster.models.machines import Server
from lending.choices import OPEN_RECLAIM_STATES, LoanState, OrderSource, ReclaimState
from lending.models.inference_clusters import InferenceCluster


class LoanOrder(models.Model):
    """Servers offered to training. ``not_before`` is later than the offer if a server came home too
    recently."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    inference_cluster = models.ForeignKey(
        InferenceCluster, on_delete=models.CASCADE, related_name="loan_orders"
    )
    #: Issuer of the order.
    source = models.CharField(max_length=10, choices=OrderSource.choices)
    #: Name of the issuer, if recorded.
    created_by = models.CharField(max_length=150, blank=True)
    created_at = models.DateTimeField(default=timezone.now)
    servers = models.ManyToManyField(Server, related_name="loan_orders")
    #: Names as given in the offer, kept when a server leaves the order or the cluster.
    server_names = models.JSONField(default=list)
    not_before = models.DateTimeField(default=timezone.now)
    state = models.CharField(max_length=9, choices=LoanState.choices, default=LoanState.PENDING)
    reason = models.CharField(max_length=300, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at", "-id"]
        constraints = [
            models.CheckConstraint(
                condition=Q(state=LoanState.PENDING, finished_at__isnull=True)
                | ~Q(state=LoanState.PENDING) & Q(finished_at__isnull=False),
                name="finished_loan_order_has_time",
            )
        ]


class ReclaimOrder(models.Model):
    """A request for ``count`` servers by a time; the platform chooses which.

    ``choice`` records how they were chosen: group, cost and excess of each server, the affected jobs, and the
    choices of other methods. ``outcome`` records the result: jobs preempted, moved and scaled in.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    inference_cluster = models.ForeignKey(
        InferenceCluster, on_delete=models.CASCADE, related_name="reclaim_orders"
    )
    #: Issuer of the order.
    source = models.CharField(max_length=10, choices=OrderSource.choices)
    created_by = models.CharField(max_length=150, blank=True)
    created_at = models.DateTimeField(default=timezone.now)
    count = models.PositiveIntegerField()
    #: Time by which the servers should be home.
    wanted_by = models.DateTimeField()
    #: Servers that were offered but not lent yet: they count first and hold no training work.
    withdrawn = models.PositiveIntegerField(default=0)
    #: Whether measured usage alone asked no server back at that time; null if no usage had been reported.
    ahead_of_usage = models.BooleanField(null=True, blank=True)
    state = models.CharField(max_length=10, choices=ReclaimState.choices, default=ReclaimState.PENDING)
    choice = models.JSONField(default=dict)
    outcome = models.JSONField(default=dict)
    begun_at = models.DateTimeField(null=True, blank=True)
    returned_at = models.DateTimeField(null=True, blank=True)
    confirmed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at", "-id"]
        constraints = [
            models.CheckConstraint(
                condition=Q(state__in=OPEN_RECLAIM_STATES, returned_at__isnull=True)
                | ~Q(state__in=OPEN_RECLAIM_STATES) & Q(returned_at__isnull=False, begun_at__isnull=False),
                name="returned_reclaim_order_has_times",
            )
        ]

    def seconds_to_return(self) -> float | None:
        """Return the seconds from the choice until the last server was back; None before."""
        if self.begun_at is None or self.returned_at is None:
            return None
        return (self.returned_at - self.begun_at).total_seconds()

    def on_time(self) -> bool | None:
        """Return whether the last server was back in time; None before that is known, and for orders due at
        once."""
        if self.wanted_by <= self.created_at:
            return None
        if self.returned_at is None:
            return False if timezone.now() > self.wanted_by else None
        return self.returned_at <= self.wanted_by


class ReclaimedServer(models.Model):
    """One server of a reclaim order, in order of choice, with the cost of its return."""

    reclaim_order = models.ForeignKey(ReclaimOrder, on_delete=models.CASCADE, related_name="servers")
    server = models.ForeignKey(Server, on_delete=models.PROTECT, related_name="reclaims")
    #: Place in the order of choice.
    position = models.PositiveIntegerField()
    #: What it held when it was chosen: nothing, flexible workers only, or base workers.
    group = models.CharField(max_length=10)
    #: Seconds lost by jobs, or preemption cost; null if a job cannot continue without its flexible workers.
    cost = models.FloatField(null=True, blank=True)
    begun_at = models.DateTimeField(default=timezone.now)
    returned_at = models.DateTimeField(null=True, blank=True)
    confirmed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["reclaim_order", "position"]
        constraints = [
            models.UniqueConstraint(fields=["reclaim_order", "server"], name="server_once_per_reclaim"),
            models.UniqueConstraint(
                fields=["server"], condition=Q(returned_at__isnull=True), name="server_returns_once_at_a_time"
            ),
            models.CheckConstraint(
                condition=Q(confirmed_at__isnull=True) | Q(returned_at__isnull=False),
                name="confirmed_server_was_returned",
            ),
            models.CheckConstraint(
                condition=Q(returned_at__isnull=True) | Q(returned_at__gte=F("begun_at")),
                name="server_returns_after_its_choice",
            ),
        ]
