"""A deployment: a model that answers requests, its generations, tokens and history."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import F, Q
from django.utils import timezone

from deployments.choices import ENDING_STATES, DeploymentState, ExpertHosting, RolloutState
from deployments.core.scaling import ScalingRule
from lending.models import InferenceCluster
from projects.models import Project
from scheduling.models import FunctionVersion, Job
from scheduling.models.jobs import new_job_id


class Deployment(models.Model):
    """A model behind HTTP, on a number of inference servers that follows its load."""

    id = models.CharField(primary_key=True, max_length=16, default=new_job_id, editable=False)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="deployments")
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="deployments")
    inference_cluster = models.ForeignKey(
        InferenceCluster, on_delete=models.PROTECT, related_name="deployments"
    )
    name = models.CharField(max_length=200)
    state = models.CharField(
        max_length=10, choices=DeploymentState.choices, default=DeploymentState.PREPARING
    )
    #: Why it is not `ready`, or why it does not reach its number of servers; empty: neither.
    reason = models.TextField(blank=True)
    created_at = models.DateTimeField(default=timezone.now)
    stopped_at = models.DateTimeField(null=True, blank=True)

    minimum_servers = models.PositiveIntegerField()
    maximum_servers = models.PositiveIntegerField()
    #: The newest decision of the scaling rule, and its reason in words.
    wanted_servers = models.PositiveIntegerField()
    wanted_reason = models.CharField(max_length=300, blank=True)
    #: Target of the 95th percentile; null: no target.
    latency_target_seconds = models.FloatField(null=True, blank=True)
    #: Time since which every sample with requests is above the target; null: the newest is not.
    slow_since = models.DateTimeField(null=True, blank=True)
    #: Inputs of one call of `predict`, and how long the first of them waits for others.
    max_batch = models.PositiveIntegerField()
    max_wait_seconds = models.FloatField()
    #: Device memory that weights may take on each server; null: all of its GPU's.
    device_memory_bytes = models.BigIntegerField(null=True, blank=True)
    experts = models.CharField(max_length=10, choices=ExpertHosting.choices, default=ExpertHosting.WHOLE)
    #: Sums of its samples since it began: counts by name, and `latencies` by bucket.
    totals = models.JSONField(default=dict, blank=True)
    #: Number of the newest generation.
    generation = models.PositiveIntegerField(default=0)

    class Meta:
        ordering = ["-created_at", "-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["project", "name"],
                condition=~Q(state=DeploymentState.STOPPED),
                name="deployment_name_once_per_project",
            ),
            models.CheckConstraint(
                condition=Q(minimum_servers__gte=1, maximum_servers__gte=F("minimum_servers"))
                & Q(wanted_servers__gte=F("minimum_servers"), wanted_servers__lte=F("maximum_servers")),
                name="deployment_servers_are_within_bounds",
            ),
            models.CheckConstraint(
                condition=Q(state=DeploymentState.STOPPED, stopped_at__isnull=False)
                | ~Q(state=DeploymentState.STOPPED) & Q(stopped_at__isnull=True),
                name="stopped_deployment_has_time",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def scaling_rule(self) -> ScalingRule:
        """Return its bounds and target."""
        return ScalingRule(self.minimum_servers, self.maximum_servers, self.latency_target_seconds)

    def is_ending(self) -> bool:
        """Return whether it drains or has stopped."""
        return self.state in ENDING_STATES


class Rollout(models.Model):
    """One generation of a deployment: a function with the weights of a job, or with `init_model`'s."""

    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE, related_name="rollouts")
    number = models.PositiveIntegerField()
    #: Null if a function is deployed without a job.
    job = models.ForeignKey(Job, on_delete=models.PROTECT, null=True, related_name="rollouts")
    function_version = models.ForeignKey(FunctionVersion, on_delete=models.CASCADE, related_name="rollouts")
    hyperparameters = models.JSONField(default=dict)
    seed = models.PositiveIntegerField(default=0)
    data = models.JSONField(default=list)
    #: Servers that spread the experts of the model as one group; 0: each server has a whole model.
    group_servers = models.PositiveIntegerField(default=0)
    state = models.CharField(max_length=10, choices=RolloutState.choices, default=RolloutState.COMING)
    #: Replicas that ended by themselves since one last served.
    failures = models.PositiveIntegerField(default=0)
    #: After a failure no replica starts before this time.
    not_before = models.DateTimeField(default=timezone.now)
    #: When its first replica served; null: none did.
    served_at = models.DateTimeField(null=True, blank=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["deployment", "number"]
        constraints = [
            models.UniqueConstraint(fields=["deployment", "number"], name="rollout_number_once"),
            models.UniqueConstraint(
                fields=["deployment"],
                condition=Q(state=RolloutState.CURRENT),
                name="one_current_rollout_per_deployment",
            ),
        ]


class DeploymentToken(models.Model):
    """A token for the replicas of one deployment only. Only its digest is stored."""

    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE, related_name="tokens")
    name = models.CharField(max_length=100)
    digest = models.CharField(max_length=64, unique=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True)
    created_at = models.DateTimeField(default=timezone.now)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["id"]


class DeploymentEvent(models.Model):
    """One line of a deployment's history. Rows are only added."""

    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE, related_name="events")
    happened_at = models.DateTimeField(default=timezone.now)
    kind = models.CharField(max_length=40)
    message = models.TextField()
    actor = models.CharField(max_length=150, blank=True)

    class Meta:
        ordering = ["id"]
