"""Replicas of deployments, one serving worker on one GPU each, and samples of their requests."""

from __future__ import annotations

import secrets

from django.db import models
from django.db.models import Q
from django.utils import timezone

from cluster.models import Gpu, Server
from deployments.choices import ReplicaState
from deployments.models.deployments import Deployment, Rollout

#: Newest characters of a replica's log that are kept.
LOG_CHARACTERS = 64 * 1024


def new_replica_key() -> str:
    """Return a key by which agents identify a replica. It is used for one process only."""
    return f"serve-{secrets.token_hex(5)}"


def new_secret() -> str:
    """Return the platform's own token for a replica."""
    return secrets.token_hex(24)


class Replica(models.Model):
    """One serving worker.

    ``told_version``, ``untold_version``: desired versions of its server from which on the desired state
    contains the replica, and no longer contains it. ``counts``: the newest reported `ServingCounts`;
    ``counted``: the counts that samples already include. ``group``: key of the replica of rank 0 in a group
    of servers that spread the experts of one model, which serves the group's store at ``group_port``;
    empty: the replica is alone.
    ``experts``: the newest reported `ExpertCounts`, of rank 0. ``ring``: the newest reported `RingCounts`;
    empty: the whole model is on the device.
    """

    key = models.CharField(primary_key=True, max_length=16, default=new_replica_key, editable=False)
    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE, related_name="replicas")
    rollout = models.ForeignKey(Rollout, on_delete=models.CASCADE, related_name="replicas")
    server = models.ForeignKey(Server, on_delete=models.PROTECT, related_name="replicas")
    gpu = models.ForeignKey(Gpu, on_delete=models.PROTECT, related_name="replicas")
    port = models.PositiveIntegerField()
    group = models.CharField(max_length=16, blank=True)
    rank = models.PositiveIntegerField(default=0)
    group_port = models.PositiveIntegerField(null=True, blank=True)
    experts = models.JSONField(default=dict, blank=True)
    ring = models.JSONField(default=dict, blank=True)
    secret = models.CharField(max_length=64, default=new_secret)
    epoch = models.BigIntegerField(default=0)
    state = models.CharField(max_length=10, choices=ReplicaState.choices, default=ReplicaState.STARTING)
    phase = models.CharField(max_length=20, blank=True)
    #: Its owner drains it: another replica starts on another server first.
    leaving = models.BooleanField(default=False)
    #: Reason why it ended without an order; empty if it did not.
    reason = models.TextField(blank=True)
    told_version = models.BigIntegerField()
    untold_version = models.BigIntegerField(null=True, blank=True)
    counts = models.JSONField(default=dict, blank=True)
    counted = models.JSONField(default=dict, blank=True)
    counts_at = models.DateTimeField(null=True, blank=True)
    log = models.TextField(blank=True)
    log_offset = models.BigIntegerField(default=0)
    created_at = models.DateTimeField(default=timezone.now)
    serving_at = models.DateTimeField(null=True, blank=True)
    draining_at = models.DateTimeField(null=True, blank=True)
    gone_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["created_at", "key"]
        constraints = [
            models.UniqueConstraint(
                fields=["gpu"], condition=~Q(state=ReplicaState.GONE), name="gpu_serves_one_replica"
            ),
            models.UniqueConstraint(
                fields=["server", "port"],
                condition=~Q(state=ReplicaState.GONE),
                name="port_serves_one_replica",
            ),
            models.CheckConstraint(
                condition=Q(state=ReplicaState.GONE, gone_at__isnull=False)
                | ~Q(state=ReplicaState.GONE) & Q(gone_at__isnull=True),
                name="gone_replica_has_time",
            ),
        ]
        indexes = [models.Index(fields=["server", "state"], name="replica_by_server")]

    @property
    def address(self) -> str:
        """Its URL on the network of the servers."""
        host = self.server.address
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


class DeploymentSample(models.Model):
    """Counts of all replicas of a deployment in one period.

    ``busy_servers``: shares of the time within `predict`, summed over replicas. ``latencies``: requests by
    bucket (`punctual.protocol.latencies`). ``servers_home``, ``servers_lent``: of its inference cluster.
    """

    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE, related_name="samples")
    began_at = models.DateTimeField()
    ended_at = models.DateTimeField()
    requests = models.BigIntegerField(default=0)
    inputs = models.BigIntegerField(default=0)
    failed = models.BigIntegerField(default=0)
    refused = models.BigIntegerField(default=0)
    rejected = models.BigIntegerField(default=0)
    batches = models.BigIntegerField(default=0)
    busy_seconds = models.FloatField(default=0.0)
    busy_servers = models.FloatField(default=0.0)
    latencies = models.JSONField(default=list)
    p50_seconds = models.FloatField(null=True, blank=True)
    p95_seconds = models.FloatField(null=True, blank=True)
    p99_seconds = models.FloatField(null=True, blank=True)
    serving = models.PositiveIntegerField(default=0)
    wanted = models.PositiveIntegerField(default=0)
    servers_home = models.PositiveIntegerField(default=0)
    servers_lent = models.PositiveIntegerField(default=0)

    class Meta:
        ordering = ["ended_at"]
        indexes = [models.Index(fields=["deployment", "ended_at"], name="deployment_sample_by_time")]
