"""Recoveries, and where a job's recovery points are."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from scheduling.choices import ProtectionState, RecoveryKind, StateSource
from scheduling.models import Recovery
from scheduling.selectors.recovery.memory_states import CopyTraffic, Holder, Loss, MemoryState, Point
from scheduling.selectors.recovery.recoveries import RecoverySummary, phase_spans


class LostServerSerializer(serializers.Serializer):
    """A server that was lost, or that was to leave."""

    name = serializers.CharField()
    silent_at = serializers.DateTimeField(allow_null=True)
    fenced_at = serializers.DateTimeField(allow_null=True)


class RankSourceSerializer(serializers.Serializer):
    """Where one rank took its state from."""

    rank = serializers.IntegerField()
    server = serializers.CharField()
    source = serializers.ChoiceField(StateSource.choices)  # type: ignore[assignment]
    holders = serializers.ListField(child=serializers.CharField())


class PhaseSerializer(serializers.Serializer):
    """One phase that was seen. `seconds` counts on while it lasts."""

    phase = serializers.ChoiceField(Recovery.PHASES)
    started_at = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True)
    seconds = serializers.FloatField()


class RecoverySerializer(serializers.ModelSerializer):
    """One failure of a job and its recovery. `detected_at`: when its server was found silent or the worker's
    exit was reported. `attempts`: generations that were started to resume the job and did not train.
    `source`: the farthest source that any rank read. Context: `servers`, names by number."""

    lost_servers = serializers.SerializerMethodField()
    sources = serializers.SerializerMethodField()
    phases = serializers.SerializerMethodField()
    iterations_lost = serializers.IntegerField(allow_null=True, read_only=True)
    lost_work_seconds = serializers.FloatField(read_only=True)
    down_seconds = serializers.SerializerMethodField()

    class Meta:
        model = Recovery
        fields = (
            "failed_generation",
            "recovering_generation",
            "kind",
            "outcome",
            "phase",
            "reason",
            "broken_off_because",
            "lost_servers",
            "lost_ranks",
            "losses",
            "attempts",
            "last_attempt",
            "source",
            "sources",
            "iteration_reached",
            "iteration_resumed",
            "iterations_lost",
            "lost_work_seconds",
            "down_seconds",
            "phases",
            "detected_at",
            "fenced_at",
            "running_at",
            "ended_at",
        )

    @extend_schema_field(LostServerSerializer(many=True))
    def get_lost_servers(self, found: Recovery) -> list[dict[str, Any]]:
        return [
            {name: one[name] for name in ("name", "silent_at", "fenced_at")} for one in found.lost_servers
        ]

    @extend_schema_field(RankSourceSerializer(many=True))
    def get_sources(self, found: Recovery) -> list[dict[str, Any]]:
        names = self.context["servers"]

        def name(server: int) -> str:
            return str(names.get(server, server))

        return [
            {**one, "server": name(one["server"]), "holders": [name(holder) for holder in one["holders"]]}
            for one in found.sources
        ]

    @extend_schema_field(PhaseSerializer(many=True))
    def get_phases(self, found: Recovery) -> list[dict[str, Any]]:
        now = timezone.now()
        return [
            PhaseSerializer(
                {
                    "phase": span.phase.value,
                    "started_at": span.start,
                    "ended_at": span.end,
                    "seconds": span.seconds(now),
                }
            ).data
            for span in phase_spans(found)
        ]

    def get_down_seconds(self, found: Recovery) -> float:
        return found.down_seconds(timezone.now())


class PointSerializer(serializers.Serializer):
    """A state from which the job could go on."""

    iteration = serializers.IntegerField()
    age_seconds = serializers.FloatField(allow_null=True)


class HolderSerializer(serializers.Serializer):
    """What one server's memory keeps of the job."""

    server = serializers.CharField()
    ranks = serializers.ListField(child=serializers.IntegerField())
    bytes = serializers.IntegerField()
    iteration = serializers.IntegerField(help_text="Iteration of the oldest of these shards.")


class LossSerializer(serializers.Serializer):
    """What the death of a server would cost now, and from where the job would go on."""

    server = serializers.CharField()
    iterations = serializers.IntegerField()
    seconds = serializers.FloatField(
        allow_null=True, help_text="Training time in seconds; null where the pace is unknown."
    )
    source = serializers.ChoiceField(StateSource.choices)  # type: ignore[assignment]


class CopiesSerializer(serializers.Serializer):
    """When copies of points in memory are sent, and what they cost training."""

    every = serializers.IntegerField(help_text="Iterations from one point to the next.")
    iterations = serializers.IntegerField(
        help_text="Iterations over which the copies of one point are spread."
    )
    bytes = serializers.IntegerField(help_text="Bytes of one point that rank 0 sends to all its peers.")
    iteration_seconds = serializers.FloatField(help_text="Seconds of an iteration without copies.")
    idle_seconds = serializers.FloatField(
        help_text="Seconds of an iteration in which training does not use the network."
    )
    copy_seconds = serializers.FloatField(
        help_text="Seconds that the copies of one point take on the network."
    )
    extension_seconds = serializers.FloatField(
        help_text="Seconds by which copies may lengthen an iteration, as planned."
    )
    measured_cost = serializers.FloatField(
        allow_null=True,
        help_text="Measured share by which copies lengthen an iteration; null before it is measured.",
    )


class MemoryPointSerializer(serializers.Serializer):
    """Where a job's newest recovery points are. `memory` and `durable` are null where there is none."""

    generation = serializers.IntegerField(allow_null=True)
    iterations_done = serializers.IntegerField()
    protection = serializers.ChoiceField(ProtectionState.choices)
    protection_reason = serializers.CharField(
        help_text="Why there are fewer copies in memory than there should be; empty where there are not."
    )
    memory = PointSerializer(allow_null=True)
    durable = PointSerializer(allow_null=True)
    committed_lag = serializers.IntegerField(allow_null=True)
    holders = HolderSerializer(many=True)
    if_lost = LossSerializer(many=True)
    copies = CopiesSerializer(
        allow_null=True,
        help_text="How copies are sent, as planned and measured; null before there is a plan.",
    )


def _counts(names: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "required": list(names),
        "properties": {name: {"type": "integer", "minimum": 0} for name in names},
    }


class RecoverySummarySerializer(serializers.Serializer):
    """How training jobs are protected now, and what failed in the last `window_seconds`."""

    window_seconds = serializers.FloatField()
    protection = serializers.SerializerMethodField()
    failures = serializers.SerializerMethodField()
    recovered_from = serializers.SerializerMethodField()
    under_way = serializers.IntegerField()
    down_seconds = serializers.FloatField()
    lost_work_seconds = serializers.FloatField()
    time_lost_seconds = serializers.FloatField()

    @extend_schema_field(_counts(ProtectionState.values))
    def get_protection(self, summary: RecoverySummary) -> dict[str, int]:
        return summary.protection

    @extend_schema_field(_counts(RecoveryKind.values))
    def get_failures(self, summary: RecoverySummary) -> dict[str, int]:
        return summary.failures

    @extend_schema_field(_counts(StateSource.values))
    def get_recovered_from(self, summary: RecoverySummary) -> dict[str, int]:
        return summary.recovered


def memory_point(
    job: Any, state: MemoryState | None, durable: Point | None, traffic: CopyTraffic | None, now: Any
) -> dict[str, Any]:
    """What `MemoryPointSerializer` shows; ``state`` is None where the job does not train."""
    in_memory = None if state is None else state.in_memory
    return {
        "generation": None if state is None else state.generation,
        "iterations_done": job.iterations_done if state is None else state.reached,
        "protection": ProtectionState.NONE if state is None else state.protection,
        "protection_reason": "" if state is None else state.reason,
        "memory": _point(in_memory, now),
        "durable": _point(durable, now),
        "committed_lag": None if state is None else state.committed_lag(),
        "holders": [] if state is None else [_holder(one) for one in state.holders()],
        "if_lost": [] if state is None else [_loss(one) for one in state.losses()],
        "copies": None if traffic is None else _copies(traffic),
    }


def _copies(traffic: CopyTraffic) -> dict[str, Any]:
    return asdict(traffic) | {"measured_cost": traffic.cost}


def _point(found: Point | None, now: Any) -> dict[str, Any] | None:
    if found is None or found.stored_at is None:
        return None
    return {"iteration": found.iteration, "age_seconds": found.age_seconds(now)}


def _holder(one: Holder) -> dict[str, Any]:
    return {"server": one.name, "ranks": one.ranks, "bytes": one.bytes, "iteration": one.iteration}


def _loss(one: Loss) -> dict[str, Any]:
    return {
        "server": one.name, "iterations": one.iterations, "seconds": one.seconds, "source": one.source.value,
    }  # fmt: skip
