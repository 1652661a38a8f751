"""Servers, GPUs, agents with their leases, and enrolment."""

from __future__ import annotations

from datetime import datetime
from functools import reduce
from operator import or_
from typing import Any

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

from cluster.choices import WHITELIST_OF, DrainState, LendingState, ServerState, Whitelist
from cluster.models.cluster import Cluster


class ServerQuerySet(models.QuerySet["Server"]):
    """Filters of servers."""

    def known(self) -> ServerQuerySet:
        """Return servers that are part of their cluster. Removed servers are kept only for history."""
        return self.exclude(state=ServerState.REMOVED)


class Server(models.Model):
    """One machine with GPUs (or declared CPU slots)."""

    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="servers")
    name = models.CharField(max_length=100)
    rack = models.CharField(max_length=100, blank=True)
    #: Servers that share a power supply; empty: unknown.
    power_domain = models.CharField(max_length=100, blank=True)
    address = models.CharField(max_length=255)
    port_first = models.PositiveIntegerField()
    port_last = models.PositiveIntegerField()
    port_next = models.PositiveIntegerField(default=0)
    state = models.CharField(max_length=10, choices=ServerState.choices, default=ServerState.UP)
    state_changed_at = models.DateTimeField(default=timezone.now)
    drain = models.CharField(max_length=10, choices=DrainState.choices, default=DrainState.NONE)
    drain_reason = models.CharField(max_length=300, blank=True)
    #: Whether it belongs to the standby pool, in any state: no work may run here.
    standby = models.BooleanField(default=False)
    hostname = models.CharField(max_length=255, blank=True)
    cpu_cores = models.PositiveIntegerField(default=0)
    #: Memory of the host, and the limit of one worker; 0: unknown.
    memory_bytes = models.BigIntegerField(default=0)
    worker_memory_bytes = models.BigIntegerField(default=0)
    #: Limit of its in-memory store for recovery points; 0: it has none.
    memory_store_bytes = models.BigIntegerField(default=0)
    #: Free disk space for jobs' files when its agent started.
    disk_free_bytes = models.BigIntegerField(default=0)
    #: Disk limit of one worker for states of experts; 0: unknown.
    worker_disk_bytes = models.BigIntegerField(default=0)
    #: When the server leaves, so that no work may run here; null: permanent. Promises do not count servers
    #: with an end.
    available_until = models.DateTimeField(null=True, blank=True)
    sandbox = models.CharField(max_length=20, blank=True)
    #: Rates of its emulated links by name, and the shares of traffic classes; null: none is emulated.
    links = models.JSONField(null=True, blank=True)
    #: Home of an inference server; null for dedicated training servers.
    inference_cluster = models.ForeignKey(
        "lending.InferenceCluster", on_delete=models.PROTECT, null=True, blank=True, related_name="servers"
    )
    lending_state = models.CharField(
        max_length=10, choices=LendingState.choices, default=LendingState.TRAINING
    )
    #: Which scheduler may use it. Never empty: a server is on exactly one whitelist.
    whitelist = models.CharField(max_length=9, choices=Whitelist.choices, default=Whitelist.TRAINING)
    #: When it was last lent, asked back or returned; null before.
    lending_changed_at = models.DateTimeField(null=True, blank=True)
    #: Grows when the desired state of this server changes.
    desired_version = models.BigIntegerField(default=1)
    created_at = models.DateTimeField(default=timezone.now)

    objects = ServerQuerySet.as_manager()

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(fields=["cluster", "name"], name="server_name_once_per_cluster"),
            models.CheckConstraint(
                condition=Q(port_first__lte=models.F("port_last")), name="server_port_range_ascends"
            ),
            models.CheckConstraint(
                condition=Q(inference_cluster__isnull=True, lending_state=LendingState.TRAINING)
                | Q(inference_cluster__isnull=False) & ~Q(lending_state=LendingState.TRAINING),
                name="only_inference_servers_are_lent",
            ),
            models.CheckConstraint(
                condition=reduce(
                    or_,
                    (
                        Q(lending_state=state, whitelist=whitelist)
                        for state, whitelist in WHITELIST_OF.items()
                    ),
                ),
                name="server_is_on_the_whitelist_of_its_state",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def home(self) -> Whitelist:
        """The server's owner: dedicated to training, or an inference cluster."""
        return Whitelist.TRAINING if self.inference_cluster_id is None else Whitelist.INFERENCE

    @property
    def on_loan(self) -> bool:
        """Whether it is an inference server on the training side, including while it is being returned."""
        return self.lending_state in (LendingState.ON_LOAN, LendingState.RECLAIMING)

    def open_to_training(self) -> bool:
        """Return whether training work may run here: the server is not drained, not on standby, still
        available, and neither at its inference home nor being returned."""
        here = self.available_until is None or self.available_until > timezone.now()
        return (
            here
            and self.drain == DrainState.NONE
            and not self.standby
            and self.lending_state in (LendingState.TRAINING, LendingState.ON_LOAN)
        )

    @property
    def store_port(self) -> int | None:
        """Port of its in-memory store: the last of its range, which no worker gets. None if it has no store,
        or only that one port."""
        return self.port_last if self.memory_store_bytes > 0 and self.port_last > self.port_first else None

    def ready_to_stand_in(self) -> bool:
        """Return whether it is on standby and may replace a lost server, if its GPUs work."""
        return (
            self.standby
            and self.state == ServerState.UP
            and self.drain == DrainState.NONE
            and self.available_until is None
        )

    def usable(self) -> bool:
        """Return whether new work may be planned here."""
        return self.state == ServerState.UP and self.open_to_training()


class GpuQuerySet(models.QuerySet["Gpu"]):
    """Filters of GPUs: the only place that defines which GPUs count where."""

    def known(self) -> GpuQuerySet:
        """Return GPUs of servers that are part of their cluster. Removed servers are kept only for
        history."""
        return self.exclude(server__state=ServerState.REMOVED)

    def own(self, cluster: Cluster | int | models.QuerySet[Cluster, Any]) -> GpuQuerySet:
        """Return the cluster's own GPUs: promises are based on these, never on borrowed ones. The cluster may
        be a subquery or a key."""
        return self.filter(server__cluster=cluster, server__inference_cluster__isnull=True)

    def on_loan(self, cluster: Cluster | int) -> GpuQuerySet:
        """Return the GPUs that the cluster has borrowed and not yet returned."""
        away = [LendingState.ON_LOAN, LendingState.RECLAIMING]
        return self.known().filter(server__cluster=cluster, server__lending_state__in=away)

    def for_training(self) -> GpuQuerySet:
        """Return the GPUs that training may use: own and borrowed ones, but not those of inference servers at
        home."""
        return self.known().filter(server__whitelist=Whitelist.TRAINING)

    def working(self) -> GpuQuerySet:
        """Return healthy GPUs of servers that were not given up: capacity, though perhaps not at this
        moment."""
        return self.known().filter(healthy=True).exclude(server__state=ServerState.DOWN)

    def measurable(self, cluster: Cluster, kind: str) -> GpuQuerySet:
        """Return the GPUs of a kind on which functions are measured: the cluster's own, or if it has none,
        those on loan."""
        owned = self.known().own(cluster).filter(kind=kind)
        return owned if owned.exists() else self.on_loan(cluster).filter(kind=kind)

    def usable(self) -> GpuQuerySet:
        """Return GPUs on which new work may be planned now, by the conditions of `Server.usable`."""
        open_to_training = [LendingState.TRAINING, LendingState.ON_LOAN]
        here = Q(server__available_until__isnull=True) | Q(server__available_until__gt=timezone.now())
        return self.filter(
            here,
            healthy=True,
            server__state=ServerState.UP,
            server__drain=DrainState.NONE,
            server__standby=False,
            server__lending_state__in=open_to_training,
        )

    def by_kind(self) -> dict[str, int]:
        """Count the GPUs of each kind."""
        return dict(self.order_by().values_list("kind").annotate(count=models.Count("pk")).order_by("kind"))


class Gpu(models.Model):
    """One GPU or declared CPU slot. ``emulated`` is shown wherever the GPU is shown."""

    server = models.ForeignKey(Server, on_delete=models.CASCADE, related_name="gpus")
    index = models.PositiveIntegerField()
    uuid = models.CharField(max_length=100, blank=True)
    kind = models.CharField(max_length=100)
    memory_bytes = models.BigIntegerField(default=0)
    emulated = models.BooleanField(default=False)
    healthy = models.BooleanField(default=True)

    objects = GpuQuerySet.as_manager()

    class Meta:
        ordering = ["server_id", "index"]
        constraints = [models.UniqueConstraint(fields=["server", "index"], name="gpu_index_once_per_server")]

    def __str__(self) -> str:
        return f"{self.server.name}:{self.index}"


class Agent(models.Model):
    """The node agent of a server: its credential and its lease."""

    server = models.OneToOneField(Server, on_delete=models.CASCADE, related_name="agent")
    credential_digest = models.CharField(max_length=64, unique=True)
    version = models.CharField(max_length=40, blank=True)
    enrolled_at = models.DateTimeField(default=timezone.now)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_report_at = models.DateTimeField(null=True, blank=True)
    #: Identifies the agent process; changes when it restarts.
    boot_id = models.CharField(max_length=64, blank=True)
    sequence = models.BigIntegerField(default=0)
    epoch_seen = models.BigIntegerField(default=0)
    desired_version_seen = models.BigIntegerField(default=0)
    #: Recent traffic of the emulated links: bytes per second by link and traffic class.
    link_load = models.JSONField(default=dict, blank=True)
    #: Last reported contents of its server's in-memory store (docs/protocols.md 2.7).
    memory_store = models.JSONField(default=dict, blank=True)
    #: Set when its work was given away: it must report an empty list before it gets work again.
    fenced_at = models.DateTimeField(null=True, blank=True)

    def silent_seconds(self, now: datetime) -> float:
        """Return the seconds since the last report (or since enrolment without one)."""
        return (now - (self.last_report_at or self.enrolled_at)).total_seconds()


class EnrolmentToken(models.Model):
    """A token with which one agent enrols once."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE)
    digest = models.CharField(max_length=64, unique=True)
    server_name = models.CharField(max_length=100, blank=True)
    #: The inference cluster that the agent's server belongs to.
    inference_cluster = models.ForeignKey(
        "lending.InferenceCluster", on_delete=models.CASCADE, null=True, blank=True, related_name="+"
    )
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True)
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)


class UtilisationSample(models.Model):
    """GPUs by use at one moment, sampled by the planner's tick for the overview's chart."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="samples")
    taken_at = models.DateTimeField(default=timezone.now, db_index=True)
    total = models.PositiveIntegerField()
    promised = models.PositiveIntegerField(default=0)
    soft = models.PositiveIntegerField(default=0)
    best_effort = models.PositiveIntegerField(default=0)
    profiling = models.PositiveIntegerField(default=0)
    changing = models.PositiveIntegerField(default=0)
    idle = models.PositiveIntegerField(default=0)
    unavailable = models.PositiveIntegerField(default=0)
    waiting_jobs = models.PositiveIntegerField(default=0)
    running_jobs = models.PositiveIntegerField(default=0)
