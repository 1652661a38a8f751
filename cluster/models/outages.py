"""Outages of the platform."""

from __future__ import annotations

from django.db import models

from cluster.models.cluster import Cluster


class Outage(models.Model):
    """A time during which the control plane was down: stopped, killed, or without power.

    ``stopped_at``: the last check of leases before it; ``started_at``: the first check after it. Both use the
    database's clock as set after the outage.
    """

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="outages")
    stopped_at = models.DateTimeField()
    started_at = models.DateTimeField(db_index=True)

    class Meta:
        ordering = ["started_at"]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(stopped_at__lt=models.F("started_at")), name="outage_has_a_length"
            )
        ]
