"""The cluster, its servers and GPUs, with what runs on them as the caller may see it."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from cluster.choices import DrainState, LendingState, NewcomersRule, ServerState, Whitelist
from cluster.links import links_of
from cluster.models import Gpu, Server
from cluster.selectors.machines import gpus_of
from cluster.selectors.utilisation import USES
from projects.api import fields
from projects.api.base import StrictSerializer
from scheduling.api.recovery_serializers import RecoverySummarySerializer
from scheduling.choices import JobState

#: Beyond these a number is a mistake.
MOST_STANDBY_SERVERS = 10_000
MOST_FAILURES_A_DAY = 1_000.0
LONGEST_REPLACEMENT_SECONDS = 30 * 86_400.0


def _counts(names: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "required": list(names),
        "properties": {name: {"type": "integer", "minimum": 0} for name in names},
    }


class GpuKindSerializer(serializers.Serializer):
    kind = serializers.CharField()
    emulated = serializers.BooleanField()
    gpus = serializers.IntegerField()


class GpuCountsSerializer(serializers.Serializer):
    """GPUs by use (each counts once) and by kind."""

    total = serializers.IntegerField()
    by_use = serializers.SerializerMethodField()
    by_kind = GpuKindSerializer(many=True)

    @extend_schema_field(_counts(USES))
    def get_by_use(self, counts: Any) -> dict[str, int]:
        return dict(counts.by_use)


class PlannerSerializer(serializers.Serializer):
    """State of the planner."""

    epoch = serializers.IntegerField()
    planning_version = serializers.IntegerField()
    planned_version = serializers.IntegerField()
    replanned_at = serializers.DateTimeField(allow_null=True)
    lease_held = serializers.BooleanField()
    outbox_messages = serializers.IntegerField()
    outbox_oldest_seconds = serializers.FloatField()


class ClusterSettingsSerializer(serializers.Serializer):
    """The number that operators set."""

    policy = serializers.CharField()
    slot_seconds = serializers.FloatField()
    reserve_servers = serializers.IntegerField()
    standby_servers = serializers.IntegerField()
    accepted_fallbacks_a_month = serializers.FloatField(
        help_text=(
            "Accepted probability that a job loses its state in memory; 0: each job has two copies in memory."
        )
    )
    fill = serializers.CharField()
    newcomers = serializers.ChoiceField(NewcomersRule.choices)
    ageing_weight = serializers.FloatField()
    offer_hold_seconds = serializers.FloatField()
    suspect_seconds = serializers.FloatField()
    fence_seconds = serializers.FloatField()


class StandbyPoolSerializer(serializers.Serializer):
    """The standby servers for one kind of GPU."""

    gpu_kind = serializers.CharField()
    servers = serializers.IntegerField(
        help_text="Servers of this kind that the cluster owns, including standby servers."
    )
    wanted = serializers.IntegerField()
    ready = serializers.ListField(
        child=serializers.CharField(),
        help_text="Names of the standby servers that can replace a lost server now.",
    )
    away = serializers.ListField(
        child=serializers.CharField(), help_text="Names of the servers of the pool that are missing."
    )
    advised = serializers.IntegerField(
        help_text=(
            "The smallest number that is used up within one replacement time with less than the "
            "accepted risk."
        )
    )
    note = serializers.CharField(allow_blank=True, help_text="The problem; empty if there is none.")


class StandbySerializer(serializers.Serializer):
    """Servers kept free until they replace a lost server."""

    standby_servers = serializers.IntegerField(help_text="For each kind of GPU.")
    failures_per_server_day = serializers.FloatField()
    replacement_seconds = serializers.FloatField()
    accepted_risk = serializers.FloatField()
    pools = StandbyPoolSerializer(many=True)


class ClusterPatchSerializer(StrictSerializer):
    standby_servers = fields.Integer(
        required=False,
        min_value=0,
        max_value=MOST_STANDBY_SERVERS,
        help_text="Standby servers for each kind of GPU.",
    )
    failures_per_server_day = fields.Number(
        required=False,
        min_value=0.0,
        max_value=MOST_FAILURES_A_DAY,
        help_text="The number that the advice assumes.",
    )
    replacement_seconds = fields.Number(
        required=False,
        min_value=0.0,
        max_value=LONGEST_REPLACEMENT_SECONDS,
        help_text="The replacement time that the advice assumes.",
    )


class ClusterSummarySerializer(serializers.Serializer):
    """The cluster in numbers. `settings`, `planner` and `standby` are null before a cluster is set up."""

    name = serializers.CharField(allow_null=True)
    now = serializers.DateTimeField(help_text="The clock by which deadlines are kept.")
    settings = ClusterSettingsSerializer(allow_null=True)
    planner = PlannerSerializer(allow_null=True)
    standby = StandbySerializer(allow_null=True)
    gpus = GpuCountsSerializer()
    servers = serializers.SerializerMethodField()
    jobs = serializers.SerializerMethodField()
    promises = serializers.SerializerMethodField()
    recovery = RecoverySummarySerializer()
    emulated = serializers.BooleanField(help_text="Whether any GPU is emulated on CPU slots.")
    stream_url = serializers.CharField(allow_blank=True)

    @extend_schema_field(_counts(["up", "suspect", "down", "draining"]))
    def get_servers(self, summary: dict[str, Any]) -> dict[str, int]:
        return dict(summary["servers"])

    @extend_schema_field(_counts(JobState.values))
    def get_jobs(self, summary: dict[str, Any]) -> dict[str, int]:
        return dict(summary["jobs"])

    @extend_schema_field(_counts(["open", "met", "missed", "void", "at_risk", "late"]))
    def get_promises(self, summary: dict[str, Any]) -> dict[str, int]:
        return dict(summary["promises"])


class OccupantSerializer(serializers.Serializer):
    """What holds a GPU: id and name of a job that the caller may see, else null and `busy`."""

    id = serializers.CharField(source="job_id", allow_null=True)
    name = serializers.SerializerMethodField()
    phase = serializers.ChoiceField(("training", "profiling", "preparing", "leaving"))
    promised = serializers.BooleanField()

    def get_name(self, occupant: Any) -> str:
        return occupant.job_name or "busy"


class GpuSerializer(serializers.ModelSerializer):
    """A GPU or declared CPU slot; `job` is null while it is free."""

    server = serializers.IntegerField(source="server_id")
    server_name = serializers.CharField(source="server.name")
    job = serializers.SerializerMethodField()

    class Meta:
        model = Gpu
        fields = (
            "id",
            "server",
            "server_name",
            "index",
            "uuid",
            "kind",
            "memory_bytes",
            "emulated",
            "healthy",
            "job",
        )

    @extend_schema_field(OccupantSerializer(allow_null=True))
    def get_job(self, gpu: Gpu) -> dict[str, Any] | None:
        occupant = self.context["occupants"].get(gpu.pk)
        return None if occupant is None else OccupantSerializer(occupant).data


class LinkSerializer(serializers.Serializer):
    """An emulated link of a server."""

    name = serializers.CharField()
    emulated = serializers.BooleanField(help_text="Always true; `/cluster/links/` holds measured links.")
    bytes_per_second = serializers.FloatField(help_text="Capacity in bytes per second.")
    latency_seconds = serializers.FloatField(help_text="Added to each message.")
    load_bytes_per_second = serializers.DictField(
        child=serializers.FloatField(), help_text="Recent traffic, by class."
    )
    load = serializers.FloatField(help_text="Recent traffic as a fraction of the rate.")


class ServerLinkSerializer(serializers.Serializer):
    """The network between two servers, in its slower direction."""

    first = serializers.CharField(help_text="Names of the two servers.")
    second = serializers.CharField()
    latency_seconds = serializers.FloatField(help_text="One-way time of an empty message.")
    bytes_per_second = serializers.FloatField()
    told_by = serializers.ChoiceField(
        ("measured", "emulated", "default"),
        source="source",
        help_text="`measured` by the servers' agents, `emulated`: the declared rate of emulated links, or "
        "the library's `default`.",
    )
    emulated = serializers.BooleanField(help_text="Whether the link is emulated.")
    since = serializers.DateTimeField(allow_null=True, help_text="When it was measured or declared.")
    measuring = serializers.BooleanField(help_text="Whether it is being measured now.")
    tried_at = serializers.DateTimeField(allow_null=True, help_text="Time of the last measurement.")
    problem = serializers.CharField(
        allow_blank=True, help_text="Why the last measurement was rejected; empty if it was accepted."
    )


class DefaultLinkSerializer(serializers.Serializer):
    """The assumed link where none is measured or declared."""

    latency_seconds = serializers.FloatField()
    bytes_per_second = serializers.FloatField()


class LinkMatrixSerializer(serializers.Serializer):
    """The links between the cluster's servers: all of up to 16 servers, of more some of each."""

    servers = serializers.ListField(child=serializers.CharField())
    default = DefaultLinkSerializer()
    links = ServerLinkSerializer(many=True)


class CodecTimesSerializer(serializers.Serializer):
    """Time that a codec takes on a kind of GPU, for one gradient and one payload of each size."""

    gpu_kind = serializers.CharField()
    emulated = serializers.BooleanField(help_text="Whether GPUs of this kind are emulated.")
    codec = serializers.CharField()
    told_by = serializers.ChoiceField(
        ("measured", "default"),
        source="source",
        help_text="`measured` by a worker, or the library's `default`.",
    )
    since = serializers.DateTimeField(allow_null=True, help_text="When it was measured.")
    confirmed_at = serializers.DateTimeField(allow_null=True, help_text="When it was last found to hold.")
    elements = serializers.ListField(child=serializers.IntegerField())
    encode_seconds = serializers.ListField(child=serializers.FloatField())
    decode_seconds = serializers.ListField(child=serializers.FloatField())


class CodecTableSerializer(serializers.Serializer):
    """All lossy codecs, on all kinds of GPU."""

    codecs = CodecTimesSerializer(many=True)


class ServerSerializer(serializers.ModelSerializer):
    """A machine with its GPUs. `sandbox` is how user code is kept apart there (`none`: it is not)."""

    state = serializers.ChoiceField(ServerState.choices)
    drain = serializers.ChoiceField(DrainState.choices)
    home = serializers.ChoiceField(Whitelist.choices, help_text="Whose server it is.")
    whitelist = serializers.ChoiceField(Whitelist.choices, help_text="Who may use it now.")
    lending_state = serializers.ChoiceField(LendingState.choices)
    gpus = serializers.SerializerMethodField()
    agent = serializers.SerializerMethodField(help_text="The agent's id; null before one enrolled.")
    silent_seconds = serializers.SerializerMethodField(help_text="Seconds since the agent's last report.")
    links = serializers.SerializerMethodField(
        help_text="Emulated links of a server with emulated GPUs, each with its rate and its load of late."
    )

    class Meta:
        model = Server
        fields = (
            "id", "name", "rack", "power_domain", "address", "state", "state_changed_at", "drain",
            "drain_reason", "standby", "home",
            "whitelist", "lending_state", "hostname",
            "cpu_cores", "memory_bytes", "worker_memory_bytes", "disk_free_bytes", "worker_disk_bytes",
            "available_until", "sandbox", "agent", "silent_seconds", "gpus",
            "links",
        )  # fmt: skip

    @extend_schema_field(GpuSerializer(many=True))
    def get_gpus(self, server: Server) -> Any:
        gpus = gpus_of(server)
        for gpu in gpus:
            gpu.server = server
        return GpuSerializer(gpus, many=True, context=self.context).data

    @extend_schema_field(LinkSerializer(many=True))
    def get_links(self, server: Server) -> Any:
        return LinkSerializer(links_of(server), many=True).data

    def get_agent(self, server: Server) -> int | None:
        agent = getattr(server, "agent", None)
        return None if agent is None else agent.pk

    def get_silent_seconds(self, server: Server) -> float | None:
        agent = getattr(server, "agent", None)
        return None if agent is None else agent.silent_seconds(self.context["now"])
