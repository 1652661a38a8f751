"""Measurements of the network between two servers, and the measurement under way."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q


class ServerLink(models.Model):
    """The idle link between two servers in its slower direction, as measured by their agents.

    ``first`` calls and ``second`` answers. The row is created when the pair is first scheduled for
    measurement.
    """

    first = models.ForeignKey("cluster.Server", on_delete=models.CASCADE, related_name="links_called")
    second = models.ForeignKey("cluster.Server", on_delete=models.CASCADE, related_name="links_answered")
    #: One-way latency of an empty message, and throughput of all connections together; null: never measured.
    latency_seconds = models.FloatField(null=True, blank=True)
    bytes_per_second = models.FloatField(null=True, blank=True)
    #: Whether emulated links were measured.
    emulated = models.BooleanField(default=False)
    measured_at = models.DateTimeField(null=True, blank=True)
    #: Time of the last attempt, and why its result was discarded; empty: it was kept.
    tried_at = models.DateTimeField(null=True, blank=True)
    problem = models.CharField(max_length=300, blank=True)

    #: The measurement under way: its number, its start, the port at which ``second`` answers, and the shared
    #: secret of both. Null and empty: none.
    number = models.PositiveIntegerField(default=0)
    asked_at = models.DateTimeField(null=True, blank=True)
    port = models.PositiveIntegerField(default=0)
    secret = models.CharField(max_length=64, blank=True)

    class Meta:
        ordering = ["first_id", "second_id"]
        constraints = [
            models.UniqueConstraint(fields=["first", "second"], name="server_link_once"),
            models.CheckConstraint(condition=Q(first__lt=F("second")), name="server_link_ascends"),
            models.CheckConstraint(
                condition=Q(bytes_per_second__isnull=True) | Q(bytes_per_second__gt=0),
                name="server_link_carries_something",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.first_id}-{self.second_id}"
