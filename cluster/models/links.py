"""What was measured of the network between two servers, and the measurement that is under way."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q


class ServerLink(models.Model):
    """The link between two servers, in its slower direction, as their agents measured it while it was idle.

    ``first`` calls and ``second`` answers. The row is made when the pair is to be measured for the first
    time.
    """

    first = models.ForeignKey("cluster.Server", on_delete=models.CASCADE, related_name="links_called")
    second = models.ForeignKey("cluster.Server", on_delete=models.CASCADE, related_name="links_answered")
    #: One way of a message without content, and what all connections together carried; null: never measured.
    latency_seconds = models.FloatField(null=True, blank=True)
    bytes_per_second = models.FloatField(null=True, blank=True)
    #: What was measured were emulated links.
    emulated = models.BooleanField(default=False)
    measured_at = models.DateTimeField(null=True, blank=True)
    #: When it was last tried, and why nothing was kept of that; empty: it was.
    tried_at = models.DateTimeField(null=True, blank=True)
    problem = models.CharField(max_length=300, blank=True)

    #: The measurement under way: its number, since when, where it is answered, and what both prove
    #: themselves with. Null and empty: none is.
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
