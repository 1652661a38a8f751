"""A job's mixture-of-experts layers, in JSON."""

from __future__ import annotations

from rest_framework import serializers


def _numbers(child: serializers.Field, text: str) -> serializers.ListField:
    return serializers.ListField(child=child, help_text=text)


class ExpertLayerSerializer(serializers.Serializer):
    """One layer. Lists have a number for each expert."""

    name = serializers.CharField(
        allow_blank=True, help_text="Name in the model; empty if the model is the layer."
    )
    tokens = serializers.IntegerField(help_text="Tokens of all workers, without padding.")
    rows = _numbers(serializers.IntegerField(), "Rows for each expert, dropped ones included.")
    dropped = _numbers(serializers.IntegerField(), "Rows beyond the capacity.")
    load = _numbers(serializers.FloatField(), "Rows relative to an even share: 1 is even.")
    two_expert_share = serializers.FloatField(
        help_text="Share of the tokens that more than one expert processes."
    )
    dropped_share = serializers.FloatField(help_text="Share of the rows.")
    balance_loss = serializers.FloatField(help_text="Mean over the iterations; 1 is even use.")
    hosts = serializers.ListField(
        child=serializers.ListField(child=serializers.IntegerField()),
        allow_null=True,
        help_text="Ranks that have each expert; an empty list: all ranks. Null: not reported.",
    )


class ExpertWorkerSerializer(serializers.Serializer):
    """Where a rank of the generation is, or was."""

    rank = serializers.IntegerField()
    server = serializers.CharField()
    gpu = serializers.IntegerField(help_text="Index of the GPU on the server.")


class RowSpanSerializer(serializers.Serializer):
    """One all-to-all, in seconds from the beginning of the iteration."""

    layer = serializers.IntegerField(help_text="Index in `layers`.")
    begin_seconds = serializers.FloatField()
    end_seconds = serializers.FloatField()


class RowsBetweenServersSerializer(serializers.Serializer):
    """How rows travelled between servers: means of one all-to-all."""

    rates_source = serializers.ChoiceField(
        ["measured", "emulated", "published"],
        help_text="Rates that the predictions use: measured between servers, else declared for emulated "
        "links, else published for A100 servers.",
    )
    hierarchical_share = serializers.FloatField(help_text="Share of the all-to-alls in two phases.")
    flat_seconds = serializers.FloatField(help_text="Predicted seconds.")
    hierarchical_seconds = serializers.FloatField(help_text="Predicted seconds.")
    predicted_seconds = serializers.FloatField(help_text="Predicted seconds of the chosen exchange.")
    measured_seconds = serializers.FloatField(
        help_text="Measured seconds, including the wait for other ranks."
    )


class AllToAllSerializer(serializers.Serializer):
    """When rows of experts travelled, as rank 0 measured it."""

    share = serializers.FloatField(help_text="Share of an iteration, including the wait for other ranks.")
    iterations = serializers.IntegerField(help_text="Number of timed iterations.")
    iteration_seconds = serializers.FloatField(help_text="Mean of the timed iterations.")
    all_to_all_seconds = serializers.FloatField(help_text="Mean of the timed iterations.")
    seconds = serializers.FloatField(help_text="Seconds of the last timed iteration.")
    backward_seconds = serializers.FloatField(help_text="When its backward pass began.")
    spans = RowSpanSerializer(many=True, help_text="All-to-alls of the last timed iteration.")
    between_servers = RowsBetweenServersSerializer(
        allow_null=True,
        help_text="Null if no rows travel between servers, or if another schedule sends them.",
    )


class PackingDecisionSerializer(serializers.Serializer):
    """A change of the packing factor, in force from the iteration on."""

    generation = serializers.IntegerField()
    iteration = serializers.IntegerField()
    from_factor = serializers.IntegerField()
    to_factor = serializers.IntegerField()
    ffn_seconds = serializers.FloatField(help_text="Mean of a micro-operation's expert computation.")
    all_to_all_seconds = serializers.FloatField(help_text="Mean of a micro-operation's all-to-all.")
    reason = serializers.CharField(allow_blank=True)


class ExpertPointSerializer(serializers.Serializer):
    """A point of the history. Lists have a number for each layer."""

    generation = serializers.IntegerField()
    iteration = serializers.IntegerField()
    told_at = serializers.DateTimeField()
    all_to_all_share = serializers.FloatField(allow_null=True)
    largest_load = _numbers(serializers.FloatField(), "Load of the most used expert; 1 is an even share.")
    two_expert_share = _numbers(serializers.FloatField(), "Share of the tokens.")
    dropped_share = _numbers(serializers.FloatField(), "Share of the rows.")
    balance_loss = _numbers(serializers.FloatField(), "Mean over the iterations.")


class ExpertsSerializer(serializers.Serializer):
    """A job's mixture-of-experts layers, of all workers, since the report before."""

    generation = serializers.IntegerField(allow_null=True)
    iteration = serializers.IntegerField(allow_null=True, help_text="Last counted iteration.")
    iterations = serializers.IntegerField(help_text="Number of counted iterations.")
    told_at = serializers.DateTimeField(allow_null=True)
    layers = ExpertLayerSerializer(many=True, help_text="Empty for a job without such layers.")
    other_layers = serializers.IntegerField(
        help_text="Number of layers beyond 64, or with more than 256 experts."
    )
    workers = ExpertWorkerSerializer(many=True)
    all_to_all = AllToAllSerializer(allow_null=True, help_text="Null where no rows travelled.")
    decisions = PackingDecisionSerializer(many=True, help_text="The last 128 changes, in order.")
    history = ExpertPointSerializer(many=True, help_text="At most 64 points over the whole job.")
