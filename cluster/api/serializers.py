"""Agents and enrolment, as the API reads and writes them."""

from __future__ import annotations

from django.utils import timezone
from rest_framework import serializers

from cluster.models import Agent
from projects.api import fields
from projects.api.base import StrictSerializer


class AgentSerializer(serializers.ModelSerializer):
    """A node agent and how long it has been silent. `fenced`: its work was given away."""

    server = serializers.IntegerField(source="server_id")
    server_name = serializers.CharField(source="server.name")
    silent_seconds = serializers.SerializerMethodField()
    fenced = serializers.SerializerMethodField()

    class Meta:
        model = Agent
        fields = (
            "id", "server", "server_name", "version", "enrolled_at", "revoked_at", "last_report_at",
            "silent_seconds", "fenced", "epoch_seen", "desired_version_seen",
        )  # fmt: skip

    def get_silent_seconds(self, agent: Agent) -> float:
        return agent.silent_seconds(timezone.now())

    def get_fenced(self, agent: Agent) -> bool:
        return agent.fenced_at is not None


class EnrolmentTokenRequestSerializer(StrictSerializer):
    server_name = fields.Name(
        max_length=100,
        allow_blank=True,
        default="",
        help_text="Only a server of this name may use the token.",
    )
    inference_cluster = fields.Text(
        max_length=64,
        allow_blank=True,
        default="",
        help_text="The server belongs to this inference cluster; empty: to training.",
    )


class EnrolmentTokenSerializer(serializers.Serializer):
    """One agent may enrol once with it. No other answer contains it."""

    token = serializers.CharField()
    server_name = serializers.CharField(allow_blank=True)
    inference_cluster = serializers.CharField(allow_blank=True)
    valid_seconds = serializers.IntegerField()


class ServerPatchSerializer(StrictSerializer):
    available_until = fields.Moment(allow_null=True, help_text="When the server leaves; null: it stays.")
    force = fields.Truth(default=False, help_text="Break the promises that stand in the way.")


class DrainRequestSerializer(StrictSerializer):
    force = fields.Truth(default=False, help_text="Break the promises that stand in the way.")
    reason = fields.Name(max_length=300, allow_blank=True, default="")
