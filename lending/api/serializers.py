"""Inference clusters, their usage and their orders, as the API reads and writes them."""

from __future__ import annotations

import uuid
from typing import Any

from django.core.validators import RegexValidator
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from cluster.choices import LendingState, Whitelist, WorkState
from cluster.models import Server
from cluster.selectors.machines import gpus_of
from lending.choices import LoanState, OrderSource, ReclaimState, ScheduledBy
from lending.forecasting.registry import FORECASTERS
from lending.models import (
    ForecasterTraining,
    InferenceCluster,
    LendingEvent,
    LoanOrder,
    ReclaimedServer,
    ReclaimOrder,
    UsageForecast,
    UsageSample,
)
from lending.models.usage import MOST_SOURCE_CHARACTERS
from projects.api import fields
from projects.api.base import StrictSerializer
from projects.api.path_patterns import PROJECT_NAME
from scheduling.core.lyra.reclaiming.methods import ReclaimMethod

LARGEST_BATCH = 2016
"""Samples of a report: a week of five minutes."""
MOST_SERVERS = 10_000
_DAY_SECONDS = 86_400.0


class OrderId(serializers.UUIDField):
    """A UUID in its usual form: nothing else that could be read as one."""

    def to_internal_value(self, data: Any) -> uuid.UUID:
        if not isinstance(data, str) or len(data) != 36:
            self.fail("invalid", value=data)
        return super().to_internal_value(data)


# --- inference clusters -------------------------------------------------------------------------------------


class UsageSampleSerializer(serializers.ModelSerializer):
    """Mean usage of the period that ends at that time. `shortfall_servers`: servers missing at home for it;
    `seen_…`: as reported.

    `source`: `measured`, or the name of the substitute for a measurement; empty if it was not reported.
    """

    class Meta:
        model = UsageSample
        fields = (
            "period_ends_at", "usage", "reported_at", "on_loan_servers", "shortfall_servers",
            "seen_shortfall_servers", "source",
        )  # fmt: skip


class UsageForecastSerializer(serializers.ModelSerializer):
    """Usage forecast for the period that ends then, and its forecaster."""

    class Meta:
        model = UsageForecast
        fields = ("period_ends_at", "usage", "forecaster", "made_at")


class LendingDecisionSerializer(serializers.Serializer):
    """What the lending rule would do now, in servers."""

    need = serializers.IntegerField(
        help_text="Servers needed for requests at the larger of usage and forecast."
    )
    target = serializers.IntegerField(help_text="Servers that should be on loan.")
    lend = serializers.IntegerField()
    reclaim = serializers.IntegerField()
    shortfall = serializers.IntegerField(help_text="Servers missing at home for the measured usage.")


class StandingSerializer(serializers.Serializer):
    """Where the cluster stands. `usage`, `forecast` and `decision` are null before the first sample."""

    servers = serializers.IntegerField()
    at_home = serializers.IntegerField()
    on_loan = serializers.IntegerField()
    reclaiming = serializers.IntegerField()
    reserve = serializers.IntegerField(help_text="Never lent.")
    settled = serializers.IntegerField(help_text="On loan for at least `minimum_hold_seconds`.")
    recent_peak = serializers.FloatField(
        help_text="Largest share of its GPUs used or expected within `minimum_hold_seconds`."
    )
    loans_pending = serializers.IntegerField()
    reclaims_open = serializers.IntegerField()
    usage = UsageSampleSerializer(allow_null=True)
    forecast = UsageForecastSerializer(allow_null=True)
    decision = LendingDecisionSerializer(allow_null=True)


class InferenceClusterSerializer(serializers.ModelSerializer):
    """An inference cluster with its operator's settings."""

    class Meta:
        model = InferenceCluster
        fields = (
            "name", "created_at", "credential_issued_at", "scheduled_by", "lending", "headroom_fraction",
            "forecast_margin_fraction",
            "hysteresis_fraction", "forecaster", "asks_back_by_forecast", "period_seconds",
            "minimum_hold_seconds", "minimum_gain_servers",
            "reclaim_method",
        )  # fmt: skip


class InferenceClusterDetailSerializer(InferenceClusterSerializer):
    """An inference cluster with its current usage, forecast and loans."""

    standing = StandingSerializer()

    class Meta(InferenceClusterSerializer.Meta):
        fields = (*InferenceClusterSerializer.Meta.fields, "standing")  # type: ignore[assignment]


class _SettingsSerializer(StrictSerializer):
    scheduled_by = serializers.ChoiceField(
        ScheduledBy.choices,
        required=False,
        help_text="`deployments`: the deployments on it report usage and give orders.",
    )
    lending = fields.Truth(required=False, help_text="If off, no more servers are lent.")
    headroom_fraction = fields.Number(min_value=0.0, max_value=1.0, required=False)
    forecast_margin_fraction = fields.Number(min_value=0.0, max_value=1.0, required=False)
    hysteresis_fraction = fields.Number(min_value=0.0, max_value=1.0, required=False)
    forecaster = serializers.ChoiceField(sorted(FORECASTERS), required=False)
    asks_back_by_forecast = fields.Truth(required=False)
    period_seconds = fields.Number(min_value=1.0, max_value=_DAY_SECONDS, required=False)
    minimum_hold_seconds = fields.Number(min_value=0.0, max_value=7 * _DAY_SECONDS, required=False)
    minimum_gain_servers = fields.Integer(min_value=1, max_value=MOST_SERVERS, required=False)
    reclaim_method = serializers.ChoiceField([str(method) for method in ReclaimMethod], required=False)


class InferenceClusterRequestSerializer(_SettingsSerializer):
    name = fields.Text(
        max_length=64,
        validators=[RegexValidator(f"^{PROJECT_NAME}$", "Letters, digits, hyphens and underscores only.")],
    )


class InferenceClusterPatchSerializer(_SettingsSerializer):
    """Only the given settings change."""

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if not attrs:
            raise ValidationError("Name at least one setting to change.")
        return attrs


class CredentialSerializer(serializers.Serializer):
    """The credential of the inference scheduler. No other answer contains it."""

    credential = serializers.CharField()
    inference_cluster = serializers.CharField()


class InferenceServerSerializer(serializers.ModelSerializer):
    """An inference server, wherever it is: its whitelist names the scheduler that may use it."""

    whitelist = serializers.ChoiceField(Whitelist.choices)
    lending_state = serializers.ChoiceField(LendingState.choices)
    gpus = serializers.SerializerMethodField()
    serves = serializers.SerializerMethodField(
        help_text="Whether it has replicas of deployments; such a server cannot be lent."
    )

    class Meta:
        model = Server
        fields = ("id", "name", "state", "whitelist", "lending_state", "lending_changed_at", "gpus", "serves")

    def get_gpus(self, server: Server) -> int:
        return len(gpus_of(server))

    def get_serves(self, server: Server) -> bool:
        return server.pk in self.context["occupied"]


class LendingEventSerializer(serializers.ModelSerializer):
    """One line of the history of its servers, with how many were where afterwards."""

    class Meta:
        model = LendingEvent
        fields = ("happened_at", "kind", "message", "at_home", "on_loan", "reclaiming")


# --- usage --------------------------------------------------------------------------------------------------


class ReportedUsageSerializer(StrictSerializer):
    period_ends_at = fields.Moment()
    usage = fields.Number(
        min_value=0.0, max_value=1.0, help_text="Share of the cluster's GPUs that served requests."
    )
    shortfall_servers = fields.Integer(
        min_value=0,
        max_value=MOST_SERVERS,
        allow_null=True,
        default=None,
        help_text="Servers that were missing, as the inference side saw it.",
    )
    source = fields.Text(  # type: ignore[assignment]
        max_length=MOST_SOURCE_CHARACTERS,
        default=UsageSample.MEASURED,
        help_text="Where the figure is from: `measured`, or what stands in for a measurement.",
    )


class UsageRequestSerializer(StrictSerializer):
    samples = serializers.ListField(
        child=ReportedUsageSerializer(), allow_empty=False, min_length=1, max_length=LARGEST_BATCH
    )


class UsageStoredSerializer(serializers.Serializer):
    stored = serializers.IntegerField()
    new = serializers.IntegerField(help_text="Periods that had not been reported before.")


# --- orders -------------------------------------------------------------------------------------------------


class LoanRequestSerializer(StrictSerializer):
    id = OrderId(help_text="Chosen by the client: the same order may be sent again.")
    servers = serializers.ListField(
        child=fields.Text(max_length=100), max_length=MOST_SERVERS, help_text="Names of servers at home."
    )


class LoanOrderSerializer(serializers.ModelSerializer):
    """Servers offered to training. The order waits until `not_before` if they returned too recently."""

    source = serializers.ChoiceField(OrderSource.choices)  # type: ignore[assignment]
    state = serializers.ChoiceField(LoanState.choices)
    servers = serializers.ListField(child=serializers.CharField(), source="server_names")

    class Meta:
        model = LoanOrder
        fields = ("id", "source", "created_at", "servers", "not_before", "state", "reason", "finished_at")


class ReclaimRequestSerializer(StrictSerializer):
    id = OrderId(help_text="Chosen by the client: the same order may be sent again.")
    count = fields.Integer(min_value=0, max_value=MOST_SERVERS, help_text="Number of servers to give back.")
    wanted_by = fields.Moment(allow_null=True, default=None, help_text="Null: as soon as possible.")


class ReclaimedServerSerializer(serializers.ModelSerializer):
    """A chosen server. `group`: what it held then (`idle`, `flexible` or `preemption`)."""

    server = serializers.CharField(source="server.name")

    class Meta:
        model = ReclaimedServer
        fields = ("server", "group", "cost", "begun_at", "returned_at", "confirmed_at")


class ReclaimOrderSerializer(serializers.ModelSerializer):
    """Servers to give back, and the chosen ones. Numbers of jobs are null until all servers are back."""

    source = serializers.ChoiceField(OrderSource.choices)  # type: ignore[assignment]
    state = serializers.ChoiceField(ReclaimState.choices)
    servers = ReclaimedServerSerializer(many=True)
    seconds_to_return = serializers.FloatField(allow_null=True)
    on_time = serializers.BooleanField(allow_null=True)
    preempted_jobs = serializers.SerializerMethodField()
    rescaled_jobs = serializers.SerializerMethodField()
    held_back_jobs = serializers.SerializerMethodField()
    collateral_gpus = serializers.SerializerMethodField()

    class Meta:
        model = ReclaimOrder
        fields = (
            "id", "source", "created_at", "count", "wanted_by", "withdrawn", "ahead_of_usage", "state",
            "begun_at",
            "returned_at", "confirmed_at", "seconds_to_return", "on_time", "servers", "preempted_jobs",
            "rescaled_jobs",
            "held_back_jobs", "collateral_gpus",
        )  # fmt: skip

    def get_preempted_jobs(self, order: ReclaimOrder) -> int | None:
        return order.outcome.get("preempted_jobs")

    def get_rescaled_jobs(self, order: ReclaimOrder) -> int | None:
        return order.outcome.get("rescaled_jobs")

    def get_held_back_jobs(self, order: ReclaimOrder) -> int | None:
        """Jobs whose growth or start was cancelled before it took effect."""
        return order.outcome.get("held_back_jobs")

    def get_collateral_gpus(self, order: ReclaimOrder) -> int | None:
        return order.choice.get("collateral_gpus")


class ReclaimOrderDetailSerializer(ReclaimOrderSerializer):
    """An order with the choice of its servers and its effect on jobs; both are empty for an inference
    scheduler."""

    choice = serializers.SerializerMethodField()
    outcome = serializers.SerializerMethodField()

    class Meta(ReclaimOrderSerializer.Meta):
        fields = (*ReclaimOrderSerializer.Meta.fields, "choice", "outcome")  # type: ignore[assignment]

    def get_choice(self, order: ReclaimOrder) -> dict[str, Any]:
        return dict(order.choice) if self.context["shows_jobs"] else {}

    def get_outcome(self, order: ReclaimOrder) -> dict[str, Any]:
        return dict(order.outcome) if self.context["shows_jobs"] else {}


class ConfirmRequestSerializer(StrictSerializer):
    servers = serializers.ListField(
        child=fields.Text(max_length=100),
        min_length=1,
        max_length=MOST_SERVERS,
        help_text="Servers that are back.",
    )


# --- trainings ----------------------------------------------------------------------------------------------


class TrainingRequestSerializer(StrictSerializer):
    forecaster = serializers.ChoiceField(
        sorted(FORECASTERS), required=False, help_text="By default the one of the cluster."
    )


class TrainingSerializer(serializers.ModelSerializer):
    """A training of a forecaster. The errors, of usage squared, are on what was set aside; null until it is
    done."""

    state = serializers.ChoiceField(WorkState.choices)
    progress = serializers.FloatField(help_text="0 to 1. Training may end before the last epoch.")
    mean_squared_error = serializers.SerializerMethodField()
    persistence_error = serializers.SerializerMethodField()
    samples = serializers.SerializerMethodField()

    class Meta:
        model = ForecasterTraining
        fields = (
            "id", "forecaster", "state", "created_at", "started_at", "finished_at", "epochs_done",
            "epochs_at_most",
            "progress", "samples", "mean_squared_error", "persistence_error", "error",
        )  # fmt: skip

    def get_mean_squared_error(self, training: ForecasterTraining) -> float | None:
        return None if training.trained is None else training.trained.error

    def get_persistence_error(self, training: ForecasterTraining) -> float | None:
        return None if training.trained is None else training.trained.persistence_error

    def get_samples(self, training: ForecasterTraining) -> int | None:
        return None if training.trained is None else training.trained.samples
