"""Deployments as the API shows them."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from deployments.choices import DeploymentState, ExpertHosting, ReplicaState, RolloutState
from deployments.models import (
    Deployment,
    DeploymentEvent,
    DeploymentSample,
    DeploymentToken,
    Replica,
    Rollout,
)
from deployments.selectors.rings import ring_of


class ReplicaRingSerializer(serializers.Serializer):
    """A replica some of whose layers stream from host memory, as it measured them."""

    resident = serializers.IntegerField(help_text="Layers that stay on the device.")
    streamed = serializers.IntegerField(help_text="Layers that are copied to the device for each pass.")
    device_bytes = serializers.IntegerField(help_text="Bytes of the weights on the device.")
    model_bytes = serializers.IntegerField(help_text="Bytes of the weights of all layers.")
    load_seconds = serializers.FloatField(help_text="Seconds to copy one layer.")
    compute_seconds = serializers.FloatField(allow_null=True, help_text="Seconds to compute one layer.")
    predicted_seconds = serializers.FloatField(
        help_text="Predicted seconds of a call of `predict`; a lower bound before the first call."
    )
    call_seconds = serializers.FloatField(
        allow_null=True, help_text="Measured seconds of a call of `predict`."
    )
    stall_seconds = serializers.FloatField(
        allow_null=True, help_text="Seconds of a call spent waiting for copies."
    )


class DeploymentReplicaSerializer(serializers.ModelSerializer):
    """One server of a deployment. Clients with a token of the deployment may send requests to `address`.
    `ring` is null where the whole model is on the device."""

    server = serializers.CharField(source="server.name")
    gpu = serializers.IntegerField(source="gpu.index")
    emulated = serializers.BooleanField(source="gpu.emulated")
    generation = serializers.IntegerField(source="rollout.number")
    state = serializers.ChoiceField(ReplicaState.choices)
    address = serializers.CharField()
    ring = serializers.SerializerMethodField()

    class Meta:
        model = Replica
        fields = (
            "key", "server", "gpu", "rank", "emulated", "generation", "state", "address", "reason",
            "created_at", "serving_at", "ring",
        )  # fmt: skip

    @extend_schema_field(ReplicaRingSerializer(allow_null=True))
    def get_ring(self, replica: Replica) -> dict[str, Any] | None:
        found = ring_of(replica)
        return None if found is None else ReplicaRingSerializer(found).data


class DeploymentGenerationSerializer(serializers.ModelSerializer):
    """What one generation serves, and whether it does. `job` is null if a function is served without it."""

    job = serializers.CharField(source="job_id", allow_null=True)
    function = serializers.SerializerMethodField()
    state = serializers.ChoiceField(RolloutState.choices)

    class Meta:
        model = Rollout
        fields = ("number", "job", "function", "state", "failures", "served_at", "created_at")

    def get_function(self, rollout: Rollout) -> str:
        version = rollout.function_version
        return f"{version.function.name}@{version.number}"


class DeploymentServersSerializer(serializers.ModelSerializer):
    """Numbers of servers: the bounds, how many are wanted now, and why."""

    min = serializers.IntegerField(source="minimum_servers")
    max = serializers.IntegerField(source="maximum_servers")
    wanted = serializers.IntegerField(source="wanted_servers")
    reason = serializers.CharField(source="wanted_reason")

    class Meta:
        model = Deployment
        fields = ("min", "max", "wanted", "reason")


class DeploymentSerializer(serializers.ModelSerializer):
    """A deployment with its replicas and generations. `reason`: why it is not `ready`, or lacks servers."""

    project = serializers.CharField(source="project.name")
    owner = serializers.CharField(source="owner.username")
    inference_cluster = serializers.CharField(source="inference_cluster.name")
    state = serializers.ChoiceField(DeploymentState.choices)
    servers = DeploymentServersSerializer(source="*")
    device_memory_bytes = serializers.IntegerField(allow_null=True)
    experts = serializers.ChoiceField(ExpertHosting.choices)
    replicas = DeploymentReplicaSerializer(source="present_replicas", many=True)
    generations = DeploymentGenerationSerializer(source="rollouts", many=True)

    class Meta:
        model = Deployment
        fields = (
            "id", "name", "project", "owner", "inference_cluster", "state", "reason", "servers",
            "latency_target_seconds", "max_batch", "max_wait_seconds", "device_memory_bytes", "experts",
            "generation", "created_at", "stopped_at", "replicas", "generations",
        )  # fmt: skip


class DeploymentPredictionSerializer(serializers.Serializer):
    """Outputs of `predict`, one for each input."""

    outputs = serializers.ListField(child=serializers.JSONField())
    generation = serializers.IntegerField(help_text="The generation that answered.")
    server = serializers.CharField(help_text="The server that answered.")


class ServerHealthSerializer(serializers.Serializer):
    """One server's answer."""

    server = serializers.CharField()
    state = serializers.CharField(allow_null=True, help_text="`serving`, `draining`, or null: no answer.")


class DeploymentHealthSerializer(serializers.Serializer):
    """`healthy`: at least one server serves."""

    healthy = serializers.BooleanField()
    servers = ServerHealthSerializer(many=True)


class DeploymentSampleSerializer(serializers.ModelSerializer):
    """What a deployment answered in one period. Percentiles are null without requests."""

    latency_seconds = serializers.SerializerMethodField()

    class Meta:
        model = DeploymentSample
        fields = (
            "began_at", "ended_at", "requests", "inputs", "failed", "refused", "rejected", "batches",
            "busy_servers", "serving", "wanted", "servers_home", "servers_lent", "latency_seconds",
        )  # fmt: skip

    @extend_schema_field(
        {
            "type": "object",
            "properties": {name: {"type": ["number", "null"]} for name in ("p50", "p95", "p99")},
            "required": ["p50", "p95", "p99"],
        }
    )
    def get_latency_seconds(self, sample: DeploymentSample) -> dict[str, Any]:
        return {"p50": sample.p50_seconds, "p95": sample.p95_seconds, "p99": sample.p99_seconds}


class DeploymentEventSerializer(serializers.ModelSerializer):
    """One line of a deployment's history."""

    class Meta:
        model = DeploymentEvent
        fields = ("happened_at", "kind", "message", "actor")


class ReplicaLogSerializer(serializers.ModelSerializer):
    """The newest part of a replica's log."""

    server = serializers.CharField(source="server.name")
    state = serializers.ChoiceField(ReplicaState.choices)
    text = serializers.CharField(source="log")

    class Meta:
        model = Replica
        fields = ("key", "server", "state", "reason", "created_at", "text")


class ReplicaLogsSerializer(serializers.Serializer):
    """Logs of the newest replicas."""

    results = ReplicaLogSerializer(many=True)


class DeploymentTokenSerializer(serializers.ModelSerializer):
    """A token that opens the replicas of a deployment, and nothing else."""

    created_by = serializers.CharField(source="created_by.username", allow_null=True, default=None)

    class Meta:
        model = DeploymentToken
        fields = ("id", "name", "created_by", "created_at", "revoked_at")


class FreshDeploymentTokenSerializer(DeploymentTokenSerializer):
    """A new token. No other answer contains `token`."""

    token = serializers.CharField()

    class Meta(DeploymentTokenSerializer.Meta):
        fields = (*DeploymentTokenSerializer.Meta.fields, "token")  # type: ignore[assignment]
