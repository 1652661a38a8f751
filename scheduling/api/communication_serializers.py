"""How a job's gradients are sent, in JSON."""

from __future__ import annotations

from rest_framework import serializers

from scheduling.choices import Lossy


class PredictionSerializer(serializers.Serializer):
    """What one iteration under a plan is predicted to take. Promises rest on measured levels alone."""

    iteration_seconds = serializers.FloatField()
    bytes_between = serializers.FloatField(help_text="That one server receives from the others.")
    bytes_within = serializers.FloatField(help_text="That one GPU receives from those of its server.")
    device_seconds = serializers.FloatField(help_text="In which one GPU encodes and decodes.")
    host_seconds = serializers.FloatField(help_text="The same of one server's processors.")
    exposed_seconds = serializers.FloatField(help_text="In which it waits for communication alone.")


class CandidatePlanSerializer(serializers.Serializer):
    """One planner's best plan."""

    planner = serializers.CharField(
        help_text="`dense` (no plan), `zen`, `cupcake`, `espresso`, `combined`, `lina`."
    )
    codec = serializers.CharField(help_text="That compresses; `none` for none.")
    lossless = serializers.BooleanField()
    buffer_bytes = serializers.IntegerField(help_text="Of device memory on each GPU.")
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
    speedup = serializers.FloatField(help_text="Predicted, over no plan.")
    given_up = serializers.CharField(allow_blank=True, help_text="Why it is not followed any more.")


class LinkRateSerializer(serializers.Serializer):
    """What one collective call takes."""

    latency_seconds = serializers.FloatField()
    bytes_per_second = serializers.FloatField()


class LinksSerializer(serializers.Serializer):
    """The links that plans are made for."""

    told_by = serializers.CharField(
        help_text="`measured` between servers, `emulated` as agents tell them, or `default` of the library."
    )
    emulated = serializers.BooleanField(help_text="Whether these are emulated links.")
    since = serializers.DateTimeField(allow_null=True)
    between = LinkRateSerializer()
    within = LinkRateSerializer()


class GradientProfileSerializer(serializers.Serializer):
    """When the job's gradients were measured, and last found to be as they were."""

    measured_at = serializers.DateTimeField()
    confirmed_at = serializers.DateTimeField()
    gpus = serializers.IntegerField()


class PredictedSpanSerializer(serializers.Serializer):
    """What is to be done to a group of gradients, in seconds from the beginning of the backward pass."""

    stage = serializers.CharField(help_text="`backward`, `encode`, `exchange` or `decode`.")
    resource = serializers.CharField(
        help_text="That it occupies: `gpu`, `processors`, the links `within` a server or `between` servers."
    )
    group = serializers.IntegerField(help_text="In order of readiness, sparse gradients first.")
    begin_seconds = serializers.FloatField()
    end_seconds = serializers.FloatField()


class CommunicationSerializer(serializers.Serializer):
    """How the job's gradients are sent: the plan of its newest generation, and those that it beat."""

    lossy = serializers.ChoiceField(Lossy.choices)
    codecs = serializers.ListField(
        child=serializers.CharField(), help_text="Codecs that lose something and may be used."
    )
    family = serializers.CharField(help_text="Of the plans under which the job's curve was measured.")
    generation = serializers.IntegerField(allow_null=True)
    gpus = serializers.IntegerField()
    chosen = CandidatePlanSerializer(allow_null=True, help_text="Null where no plan is followed.")
    beaten = CandidatePlanSerializer(many=True)
    speedup = serializers.FloatField(allow_null=True, help_text="Predicted, over no plan.")
    made_at = serializers.DateTimeField(allow_null=True)
    given_up = serializers.CharField(allow_blank=True)
    measured_seconds = serializers.FloatField(allow_null=True, help_text="Of an iteration, of late.")
    seconds_without_plan = serializers.FloatField(
        allow_null=True, help_text="Of an iteration as it was measured without any plan."
    )
    window = serializers.DictField(
        allow_null=True, help_text="What rank 0 told last (docs/protocols.md 2.8)."
    )
    predicted_spans = PredictedSpanSerializer(
        many=True, help_text="One iteration as it is predicted; the window's `spans` are as measured."
    )
    profile = GradientProfileSerializer(allow_null=True)
    links = LinksSerializer(allow_null=True)
    levels = PlanLevelSerializer(many=True)
