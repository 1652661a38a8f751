"""Inference clusters, whose idle servers may be lent to training (Lyra section 3.3), and their servers'
history."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

from cluster.choices import LendingState
from cluster.models.cluster import Cluster
from lending.choices import ScheduledBy
from lending.core.lending_rule import HEADROOM_FRACTION, HYSTERESIS_FRACTION, LendingRule


class InferenceCluster(models.Model):
    """Servers that serve requests. Their inference scheduler alone decides how many are lent and when.

    ``account`` represents the scheduler in the platform's records of requests. It is inactive, so
    nobody can log in with it. The scheduler's credential is stored as a digest.
    """

    name = models.SlugField(max_length=64, unique=True)
    #: The training cluster that its servers are lent to.
    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="inference_clusters")
    account = models.OneToOneField(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    credential_digest = models.CharField(max_length=64, unique=True, null=True, blank=True)
    credential_issued_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(default=timezone.now)

    #: The party that reports usage, lends and reclaims.
    scheduled_by = models.CharField(max_length=12, choices=ScheduledBy.choices, default=ScheduledBy.SCHEDULER)
    #: Off: nothing more is lent; servers on loan stay until they are reclaimed.
    lending = models.BooleanField(default=True)
    #: Share of its servers that is never lent.
    headroom_fraction = models.FloatField(default=HEADROOM_FRACTION)
    #: Added to every forecast, as a share of its GPUs.
    forecast_margin_fraction = models.FloatField(default=0.0)
    #: A server is lent only if usage could rise by this share of the cluster before the server had to be
    #: reclaimed.
    hysteresis_fraction = models.FloatField(default=HYSTERESIS_FRACTION)
    forecaster = models.CharField(max_length=40, default="lstm")
    #: Whether the platform itself asks servers back ahead of a forecast rise, for schedulers that do not.
    asks_back_by_forecast = models.BooleanField(default=False)
    #: Length of a usage sample; a forecast is for the following period.
    period_seconds = models.FloatField(default=300.0)
    #: Minimum hold time: a server is not lent if it was needed or expected to be needed within this time, and
    #: a forecast alone does not ask back a server lent within it.
    minimum_hold_seconds = models.FloatField(default=600.0)
    #: Moves of fewer servers than this are postponed, unless measured usage needs them.
    minimum_gain_servers = models.PositiveIntegerField(default=1)
    #: How servers are chosen once jobs have to be preempted (`scheduling/core/lyra/reclaiming/choosing.py`).
    reclaim_method = models.CharField(max_length=10, default="improved")

    class Meta:
        ordering = ["id"]
        constraints = [
            models.CheckConstraint(
                condition=Q(headroom_fraction__gte=0.0, headroom_fraction__lte=1.0)
                & Q(forecast_margin_fraction__gte=0.0, forecast_margin_fraction__lte=1.0)
                & Q(hysteresis_fraction__gte=0.0, hysteresis_fraction__lte=1.0),
                name="inference_fractions_are_fractions",
            ),
            models.CheckConstraint(
                condition=Q(period_seconds__gt=0.0, minimum_hold_seconds__gte=0.0),
                name="inference_times_are_times",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def rule(self) -> LendingRule:
        """Return the lending rule for the servers that the cluster has now."""
        return LendingRule(
            self.servers.count(),
            self.headroom_fraction,
            self.forecast_margin_fraction,
            self.hysteresis_fraction,
        )

    def servers_in(self, *states: LendingState) -> int:
        """Return how many of its servers are in one of the states."""
        return self.servers.filter(lending_state__in=states).count()


class LendingEvent(models.Model):
    """One line of the history of an inference cluster's servers, with the counts after it. Append-only."""

    inference_cluster = models.ForeignKey(InferenceCluster, on_delete=models.CASCADE, related_name="events")
    happened_at = models.DateTimeField(default=timezone.now)
    kind = models.CharField(max_length=40)
    #: The event in a sentence.
    message = models.TextField()
    #: The event's facts by name.
    detail = models.JSONField(default=dict)
    #: Servers at their inference home after the event.
    at_home = models.PositiveIntegerField()
    #: Servers lent to training after the event.
    on_loan = models.PositiveIntegerField()
    #: Servers being returned after the event.
    reclaiming = models.PositiveIntegerField()

    class Meta:
        ordering = ["id"]
        indexes = [models.Index(fields=["inference_cluster", "happened_at"], name="lending_event_by_time")]
