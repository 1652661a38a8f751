"""Answers of the planners of mixtures of experts, in JSON."""

from __future__ import annotations

from rest_framework import serializers

from moe.moesys.all_to_all import Algorithm
from moe.moesys.choices import Remedy


class TierBytesSerializer(serializers.Serializer):
    """Bytes of device memory, host memory and disk."""

    gpu = serializers.FloatField()
    cpu = serializers.FloatField()
    ssd = serializers.FloatField()


class TierCountsSerializer(serializers.Serializer):
    """Servers that each tier needs; null if no number is enough."""

    gpu = serializers.IntegerField(allow_null=True)
    cpu = serializers.IntegerField(allow_null=True)
    ssd = serializers.IntegerField(allow_null=True)


class FitSerializer(serializers.Serializer):
    """The fewest servers that hold a model."""

    n_min = serializers.IntegerField(allow_null=True, help_text="Servers; null if no number is enough.")
    binding = serializers.CharField(help_text="The tier that needs the most servers.")
    by_tier = TierCountsSerializer()
    bytes = TierBytesSerializer(help_text="Bytes on all these servers together.")
    fullest_bytes = TierBytesSerializer(help_text="Bytes on the fullest server.")
    gpus_without_tiers = serializers.IntegerField(
        allow_null=True,
        help_text="GPUs that hold all states, with experts spread evenly; null if no number is enough.",
    )
    dense = serializers.FloatField(help_text="Parameters.")
    sparse = serializers.FloatField(help_text="Parameters.")


class TaskGroupSerializer(serializers.Serializer):
    """The ranks of one task, and the samples of each."""

    task = serializers.IntegerField()
    ranks = serializers.ListField(child=serializers.IntegerField())
    batch = serializers.ListField(child=serializers.IntegerField())


class ElasticSerializer(serializers.Serializer):
    """GPUs for tasks."""

    q = serializers.FloatField(help_text="The load above which a task is split.")
    gpus = serializers.IntegerField()
    groups = TaskGroupSerializer(many=True)
    util = serializers.FloatField(help_text="Mean load over largest load.")
    loads = serializers.ListField(child=serializers.FloatField(), help_text="Load of each rank.")
    bubbles = serializers.ListField(
        child=serializers.FloatField(), help_text="Share of a step in which each rank waits."
    )
    step_seconds = serializers.FloatField(allow_null=True, help_text="Null without `step_cost`.")
    samples_per_second = serializers.FloatField(allow_null=True, help_text="Null without `step_cost`.")
    meets_deadline = serializers.BooleanField(
        allow_null=True,
        help_text=(
            "Whether the plan meets the deadline (mode `deadline`). If no gang meets it, the plan "
            "is the fastest one."
        ),
    )


class PlacementSerializer(serializers.Serializer):
    """One placement. Times are predicted, in seconds."""

    nodes = serializers.ListField(child=serializers.CharField(), help_text="Ids of servers.")
    gpus = serializers.ListField(child=serializers.IntegerField(), help_text="On each server.")
    flat = serializers.FloatField(help_text="A flat all-to-all.")
    hier = serializers.FloatField(
        allow_null=True, help_text="A hierarchical all-to-all; null if the parts are unequal."
    )
    algo = serializers.ChoiceField([algorithm.value for algorithm in Algorithm])
    score = serializers.FloatField(help_text="Communication of a step; lower is better.")


class RingSerializer(serializers.Serializer):
    """A ring of device memory."""

    K = serializers.IntegerField(allow_null=True, help_text="Sections; null if not even two fit.")
    bytes = serializers.FloatField(help_text="Device memory on each GPU.")
    first_pass = serializers.FloatField(allow_null=True, help_text="Seconds of the first token.")
    steady = serializers.FloatField(allow_null=True, help_text="Seconds of a token in steady state.")
    k_min = serializers.IntegerField(help_text="Sections with which the first pass never waits for a copy.")
    pinned = serializers.ListField(child=serializers.IntegerField(), help_text="Layers that stay.")
    is_resident = serializers.BooleanField(help_text="Whether all layers fit.")
    is_admitted = serializers.BooleanField(help_text="Whether the job fits and meets its latency.")
    binding = serializers.CharField(
        allow_blank=True, help_text="What a job that is not admitted lacks: `gpu` or `deadline`."
    )
    remedy = serializers.ChoiceField([remedy.value for remedy in Remedy])
    remedy_gpus = serializers.IntegerField(allow_null=True)
    is_load_bound = serializers.BooleanField(
        help_text="Whether copies take longer than computation, so that a larger batch costs no latency."
    )
