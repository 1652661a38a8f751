"""The experts of a deployment's model, in JSON."""

from __future__ import annotations

from rest_framework import serializers


class ServedLayerSerializer(serializers.Serializer):
    """One mixture-of-experts layer since its group began. Lists have an item for each expert."""

    name = serializers.CharField(
        allow_blank=True, help_text="Name in the model; empty if the model is the layer."
    )
    rows = serializers.ListField(child=serializers.IntegerField())
    popularity = serializers.ListField(child=serializers.FloatField(), help_text="Shares of the rows.")
    predicted = serializers.ListField(
        child=serializers.FloatField(),
        allow_null=True,
        help_text="Shares as estimated before the gate ran; null: this layer has no estimate.",
    )
    hosts = serializers.ListField(
        child=serializers.ListField(child=serializers.IntegerField()),
        help_text="Places in `servers` that have each expert now; several are replicas.",
    )
    passes = serializers.IntegerField()
    estimated_passes = serializers.IntegerField(help_text="Number of passes with an estimate.")
    replaced_passes = serializers.IntegerField(
        help_text="Number of these passes whose experts were placed again because the estimate was wrong."
    )
    replaced_share = serializers.FloatField(allow_null=True, help_text="Share of the estimated passes.")
    load = serializers.FloatField(help_text="Rows of the fullest server relative to the mean.")
    even_load = serializers.FloatField(help_text="The same ratio under the even placement.")


class DeploymentExpertsSerializer(serializers.Serializer):
    """What the newest group of servers reports of the experts of its model."""

    generation = serializers.IntegerField(allow_null=True, help_text="Null: nothing was reported.")
    reported_at = serializers.DateTimeField(allow_null=True)
    servers = serializers.ListField(child=serializers.CharField(), help_text="By rank.")
    layers = ServedLayerSerializer(many=True)
    layers_left_out = serializers.IntegerField(
        help_text="Number of further layers, for which a report has no room."
    )
    swaps = serializers.IntegerField(help_text="Experts that the first server loaded from host memory.")
    swap_seconds = serializers.FloatField(help_text="Seconds that loading took.")
    waited_seconds = serializers.FloatField(help_text="Seconds of this in which a batch waited.")
