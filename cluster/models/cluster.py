"""A cluster: the operator's settings, the state of its planning, and the planner's lease.

They are one row: each transaction that changes jobs, servers or plans locks it, and reads some of each part.
"""

from __future__ import annotations

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models

from cluster.choices import NewcomersRule
from recovery.costs.failures import PUBLISHED_FAILURES_A_DAY
from recovery.probability.standby import REPLACEMENT_SECONDS

_AT_LEAST_0 = [MinValueValidator(0.0)]


class PlanningSettings(models.Model):
    """How jobs are admitted and GPUs allocated."""

    policy = models.CharField(max_length=40, default="punctual")
    slot_seconds = models.FloatField(default=5.0)
    fill = models.CharField(
        max_length=10, default="uniform", choices=[("uniform", "Uniform"), ("suffix", "Suffix")]
    )
    #: Whether each newcomer that fits is promised its deadline, or room is kept for smaller ones.
    newcomers = models.CharField(max_length=10, default=NewcomersRule.OPEN, choices=NewcomersRule.choices)
    #: Running time in seconds that one second of waiting offsets, among jobs without a promise under
    #: `punctual`; 0: none.
    ageing_weight = models.FloatField(default=0.5, validators=_AT_LEAST_0)
    offer_hold_seconds = models.FloatField(default=120.0)
    #: Promises assume throughput lowered by this fraction, since measured speed varies.
    promise_margin = models.FloatField(default=0.05)
    #: A full replan happens at least this often, whatever the events.
    replan_seconds = models.FloatField(default=30.0)
    #: Least host memory for each GPU: servers with less are not used. 0: the smallest share in the pool.
    worker_memory_bytes = models.BigIntegerField(default=0, validators=[MinValueValidator(0)])
    profile_seconds_per_level = models.FloatField(default=2.0)
    profile_maximum_seconds = models.FloatField(default=60.0)

    class Meta:
        abstract = True


class FailureSettings(models.Model):
    """Which failures promises and copies in memory must survive."""

    #: Servers that promises do not rely on.
    reserve_servers = models.PositiveIntegerField(default=0)
    #: Servers of each kind of GPU that stay free until they replace a lost server.
    standby_servers = models.PositiveIntegerField(default=0)
    #: The advised number of standby servers follows from these two.
    failures_per_server_day = models.FloatField(default=PUBLISHED_FAILURES_A_DAY, validators=_AT_LEAST_0)
    replacement_seconds = models.FloatField(default=REPLACEMENT_SECONDS, validators=_AT_LEAST_0)
    #: Accepted probability that a job falls back to durable storage within a month; it determines the number
    #: of copies in memory. 0: two copies.
    accepted_fallbacks_a_month = models.FloatField(
        default=0.0, validators=[MinValueValidator(0.0), MaxValueValidator(0.99)]
    )
    #: Failures that take all servers of one rack, or of one power domain.
    failures_per_rack_day = models.FloatField(default=0.0, validators=_AT_LEAST_0)
    failures_per_power_domain_day = models.FloatField(default=0.0, validators=_AT_LEAST_0)

    class Meta:
        abstract = True


class AgentSettings(models.Model):
    """How often agents report, and how long the platform waits for them."""

    report_seconds = models.FloatField(default=1.0)
    suspect_seconds = models.FloatField(default=10.0)
    fence_seconds = models.FloatField(default=60.0)
    fence_margin_seconds = models.FloatField(default=2.0)
    prepare_timeout_seconds = models.FloatField(default=120.0)
    handover_timeout_seconds = models.FloatField(default=60.0)
    suspend_timeout_seconds = models.FloatField(default=60.0)

    class Meta:
        abstract = True


class PlanningState(models.Model):
    """What has been planned, and when the next plan is due.

    ``planning_version`` grows with every fact that planning depends on (jobs, capacity, curves,
    generations; never heartbeats or progress): a plan is committed only if it has not moved.
    """

    planning_version = models.BigIntegerField(default=1)
    planned_version = models.BigIntegerField(default=0)
    replanned_at = models.DateTimeField(null=True, blank=True)
    next_slot_at = models.DateTimeField(null=True, blank=True)
    next_wake_at = models.DateTimeField(null=True, blank=True)
    #: State that the policy carries from one decision to the next: its name, and numbers by kind of GPU.
    policy_memory = models.JSONField(default=dict, blank=True)
    #: When a standby server was last sought in vain, and what prevented it.
    standby_tried_at = models.DateTimeField(null=True, blank=True)
    standby_obstacle = models.TextField(blank=True)

    class Meta:
        abstract = True


class PlannerLease(models.Model):
    """Which process may plan.

    ``epoch`` grows with every change of planner: agents refuse commands of an older one.
    """

    epoch = models.BigIntegerField(default=0)
    planner_owner = models.CharField(max_length=200, blank=True)
    planner_token = models.CharField(max_length=40, blank=True)
    planner_lease_expires_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        abstract = True


class LeaseClock(models.Model):
    """The clock by which leases of agents expire."""

    #: When leases were last checked: a gap means that the control plane itself was away.
    leases_checked_at = models.DateTimeField(null=True, blank=True)
    #: No lease expires before this time (set after such a gap).
    leases_hold_until = models.DateTimeField(null=True, blank=True)
    #: For each boot of a machine that checks leases: the database's clock less the seconds since that boot.
    leases_clocks = models.JSONField(default=dict, blank=True)

    class Meta:
        abstract = True


class Cluster(
    PlanningSettings, FailureSettings, AgentSettings, PlanningState, PlannerLease, LeaseClock, models.Model
):
    """One pool of servers under one planner."""

    name = models.SlugField(max_length=64, unique=True, default="default")

    def __str__(self) -> str:
        return self.name
