"""How a job's gradients are sent, in JSON."""

from __future__ import annotations

from rest_framework import serializers

from scheduling.choices import Lossy


class PredictionSerializer(serializers.Serializer):
    """What one iteration under a plan is predicted to take. Promises count on measured speeds only."""

    iteration_seconds = serializers.FloatField()
    bytes_between = serializers.FloatField(help_text="Bytes that one server receives from the others.")
    bytes_within = serializers.FloatField(
        help_text="Bytes that one GPU receives from the GPUs of its server."
    )
    device_seconds = serializers.FloatField(help_text="Seconds in which one GPU encodes and decodes.")
    host_seconds = serializers.FloatField(
        help_text="Seconds in which the processors of one server encode and decode."
    )
    exposed_seconds = serializers.FloatField(
        help_text="Seconds in which the iteration waits for communication alone."
    )


class CandidatePlanSerializer(serializers.Serializer):
    """One planner's best plan."""

    planner = serializers.CharField(
        help_text="`dense` (no plan), `zen`, `cupcake`, `espresso`, `combined`, `lina`."
    )
    codec = serializers.CharField(help_text="The codec that compresses; `none` without compression.")
    lossless = serializers.BooleanField()
    buffer_bytes = serializers.IntegerField(help_text="Bytes of device memory on each GPU.")
    predicted = PredictionSerializer()


class PlanLevelSerializer(serializers.Serializer):
    """The plan of the job's family for one number of GPUs."""

    gpus = serializers.IntegerField()
    servers = serializers.IntegerField()
    gpus_per_server = serializers.IntegerField()
    planner = serializers.CharField()
    codec = serializers.CharField()
    predicted_seconds = serializers.FloatField()
    measured_seconds = serializers.FloatField(allow_null=True)
    speedup = serializers.FloatField(help_text="Predicted speed-up over training without a plan.")
    given_up = serializers.CharField(allow_blank=True, help_text="Why the job stopped following it.")


class LinkRateSerializer(serializers.Serializer):
    """Seconds of one collective call."""

    latency_seconds = serializers.FloatField()
    bytes_per_second = serializers.FloatField()


class LinksSerializer(serializers.Serializer):
    """The links that plans are made for."""

    told_by = serializers.CharField(
        help_text="`measured` between servers, `emulated`: declared by agents, or the library's `default`."
    )
    emulated = serializers.BooleanField(help_text="Whether these are emulated links.")
    since = serializers.DateTimeField(allow_null=True)
    between = LinkRateSerializer()
    within = LinkRateSerializer()


class GradientProfileSerializer(serializers.Serializer):
    """When the job's gradients were measured, and when they were last confirmed."""

    measured_at = serializers.DateTimeField()
    confirmed_at = serializers.DateTimeField()
    gpus = serializers.IntegerField()


class PredictedSpanSerializer(serializers.Serializer):
    """A predicted stage of a group of gradients, in seconds from the beginning of the backward pass."""

    stage = serializers.CharField(help_text="`backward`, `encode`, `exchange` or `decode`.")
    resource = serializers.CharField(
        help_text=(
            "The resource that it occupies: `gpu`, `processors`, the links `within` a server or "
            "`between` servers."
        )
    )
    group = serializers.IntegerField(help_text="In order of readiness, sparse gradients first.")
    begin_seconds = serializers.FloatField()
    end_seconds = serializers.FloatField()


class CommunicationSerializer(serializers.Serializer):
    """How the job's gradients are sent: the plan of its newest generation, and those that it beat."""

    lossy = serializers.ChoiceField(Lossy.choices)
    codecs = serializers.ListField(child=serializers.CharField(), help_text="Lossy codecs that may be used.")
    family = serializers.CharField(help_text="Family of the plans under which the job's curve was measured.")
    generation = serializers.IntegerField(allow_null=True)
    gpus = serializers.IntegerField()
    chosen = CandidatePlanSerializer(allow_null=True, help_text="Null where no plan is followed.")
    beaten = CandidatePlanSerializer(many=True)
    speedup = serializers.FloatField(
        allow_null=True, help_text="Predicted speed-up over training without a plan."
    )
    made_at = serializers.DateTimeField(allow_null=True)
    given_up = serializers.CharField(allow_blank=True)
    measured_seconds = serializers.FloatField(allow_null=True, help_text="Recent seconds of an iteration.")
    seconds_without_plan = serializers.FloatField(
        allow_null=True, help_text="Seconds of an iteration as measured without a plan."
    )
    window = serializers.DictField(
        allow_null=True, help_text="The last report of rank 0 (docs/protocols.md 2.8)."
    )
    predicted_spans = PredictedSpanSerializer(
        many=True, help_text="The predicted iteration; `spans` of the window are measured."
    )
    profile = GradientProfileSerializer(allow_null=True)
    links = LinksSerializer(allow_null=True)
    levels = PlanLevelSerializer(many=True)
