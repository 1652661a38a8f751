"""Workers' reports of mixture-of-experts layers (docs/protocols.md 2.11)."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from punctual.protocol import limits
from punctual.protocol.communication import Share
from punctual.protocol.fields import Count, Message, Number, ShortText, TensorName, TrainSeconds

Counts = Annotated[list[Count], Field(min_length=1, max_length=limits.EXPERTS_OF_A_LAYER)]
#: A layer's name in the model; empty if the model is the layer.
LayerName = TensorName | Annotated[str, Field(max_length=0)]
Hosts = Annotated[list[Number], Field(max_length=limits.HOSTS_OF_AN_EXPERT)]
BalanceLoss = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
PackingFactor = Annotated[int, Field(ge=1, le=limits.MOST_WORKERS)]


class LayerRouting(Message):
    """Counts of one layer's tokens, over all workers.

    Attributes:
        tokens: without padding. two_expert_tokens: of them, those that went to more than one expert.
        rows: by expert, including dropped rows. dropped: by expert.
        balance_loss: mean over the iterations, without the layer's weight; 0 if it computes none.
        hosts: by expert, its ranks; an empty list: all ranks. None: not reported.
    """

    name: LayerName
    tokens: Count
    two_expert_tokens: Count
    rows: Counts
    dropped: Counts
    balance_loss: BalanceLoss = 0.0
    hosts: Annotated[list[Hosts], Field(max_length=limits.EXPERTS_OF_A_LAYER)] | None = None

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        if len(self.rows) != len(self.dropped):
            raise ValueError(f"rows has {len(self.rows)} experts and dropped {len(self.dropped)}")
        if self.two_expert_tokens > self.tokens:
            raise ValueError(f"two_expert_tokens is {self.two_expert_tokens} of {self.tokens} tokens")
        if any(dropped > rows for rows, dropped in zip(self.rows, self.dropped, strict=True)):
            raise ValueError("an expert dropped more rows than it had")
        if self.hosts is not None:
            if len(self.hosts) != len(self.rows):
                raise ValueError(f"hosts has {len(self.hosts)} experts and rows {len(self.rows)}")
            if any(hosts != sorted(set(hosts)) for hosts in self.hosts):
                raise ValueError("the hosts of an expert must be ascending ranks")
        return self


class RowSpan(Message):
    """An all-to-all of rows, in seconds from the beginning of the iteration.

    `layer`: whose rows, by its place in `layers`.
    """

    layer: Annotated[int, Field(ge=0, lt=limits.MOE_LAYERS_OF_A_MODEL)]
    begin_seconds: TrainSeconds
    end_seconds: TrainSeconds

    @model_validator(mode="after")
    def _is_ordered(self) -> Self:
        if self.end_seconds < self.begin_seconds:
            raise ValueError(f"it ends at {self.end_seconds:g} s, before it begins")
        return self


class RowsBetweenServers(Message):
    """Rows exchanged between servers: means of one all-to-all of the timed iterations.

    Attributes:
        rates_source: origin of the rates behind the predictions.
        hierarchical_share: share of all-to-alls in two phases.
        flat_seconds, hierarchical_seconds, predicted_seconds: predictions, the last one for the chosen way.
        measured_seconds: including waits for other ranks.
    """

    rates_source: Literal["measured", "emulated", "published"] = "published"
    hierarchical_share: Share
    flat_seconds: TrainSeconds
    hierarchical_seconds: TrainSeconds
    predicted_seconds: TrainSeconds
    measured_seconds: TrainSeconds


class RowTiming(Message):
    """Times of row exchanges, measured by rank 0; on an emulated device in emulated time.

    Attributes:
        iterations: timed ones. iteration_seconds, all_to_all_seconds: means over them; the latter is the time
            of exchanges, including waits for other ranks.
        seconds, backward_seconds, spans: of the last one: its length, the begin of its backward pass, and its
            first all-to-alls.
        between_servers: None if ranks are on one server, or rows follow another schedule.
    """

    iterations: Annotated[int, Field(ge=1, le=limits.LARGEST_COUNT)]
    iteration_seconds: TrainSeconds
    all_to_all_seconds: TrainSeconds
    seconds: TrainSeconds
    backward_seconds: TrainSeconds
    spans: Annotated[list[RowSpan], Field(max_length=limits.SPANS_OF_A_WINDOW)]
    between_servers: RowsBetweenServers | None = None

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        if self.all_to_all_seconds > self.iteration_seconds or self.backward_seconds > self.seconds:
            raise ValueError("a part of an iteration is longer than the iteration")
        if any(span.end_seconds > self.seconds for span in self.spans):
            raise ValueError("an all-to-all ends after the iteration")
        return self


class PackingDecision(Message):
    """A change of the packing factor, effective from `iteration` on, and the mean times that caused it."""

    iteration: Count
    from_factor: PackingFactor
    to_factor: PackingFactor
    ffn_seconds: TrainSeconds
    all_to_all_seconds: TrainSeconds
    reason: ShortText


class ExpertRouting(Message):
    """Counts of the tokens of all workers since the last record, from rank 0.

    Attributes:
        iteration: the last one. iterations: how many.
        layers: the first layers, as many as fit the record's number of experts. other_layers: number of the
            others.
        timing: None without row exchanges.
        decisions: since the last record.
    """

    iteration: Count
    iterations: Annotated[int, Field(ge=1, le=limits.LARGEST_COUNT)]
    layers: Annotated[list[LayerRouting], Field(max_length=limits.MOE_LAYERS_OF_A_MODEL)]
    other_layers: Number = 0
    timing: RowTiming | None = None
    decisions: Annotated[list[PackingDecision], Field(max_length=limits.DECISIONS_OF_A_RECORD)] = []

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        if len({layer.name for layer in self.layers}) < len(self.layers):
            raise ValueError("two layers have one name")
        if not self.layers and not self.other_layers:
            raise ValueError("there is no layer")
        if self.iterations > self.iteration:
            raise ValueError(f"iterations is {self.iterations}, but the last one is number {self.iteration}")
        places = sum(len(hosts) for layer in self.layers for hosts in layer.hosts or ())
        if places > limits.PLACES_OF_EXPERTS:
            raise ValueError(f"hosts names {places} ranks; the limit is {limits.PLACES_OF_EXPERTS}")
        spans = [] if self.timing is None else self.timing.spans
        if any(span.layer >= len(self.layers) for span in spans):
            raise ValueError("a span is of a layer that is not in layers")
        return self
