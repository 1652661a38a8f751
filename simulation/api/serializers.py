"""Studies and their runs, as the API reads and writes them."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from cluster.choices import NewcomersRule, WorkState
from projects.api import fields
from projects.api.base import StrictSerializer
from scheduling.core.question.options import Option, options_of
from scheduling.core.question.snapshot import Fill
from simulation.choices import StudySource, TraceKind
from simulation.engine.asked.lending import Lending
from simulation.engine.asked.pauses import Pauses
from simulation.models import SimulationRun, SimulationStudy
from simulation.selectors.studies import result_files

LARGEST_INTEGER = 2**31 - 1
LENDING = options_of(Lending)
"""What a study may choose about loans has the bounds and the words that every simulation has."""


def sentence(told: Option, *more: str) -> str:
    """What a choice is, as a sentence; ``more`` behind a colon."""
    text = ": ".join((told.meaning, *more))
    return f"{text[0].upper()}{text[1:]}."


class TraceSerializer(serializers.Serializer):
    """A trace that can be named, and the cluster that its authors simulate it on, where known."""

    name = serializers.CharField()
    kind = serializers.ChoiceField(TraceKind.choices)
    description = serializers.CharField()
    jobs = serializers.IntegerField(allow_null=True, help_text="Null if the number is unknown.")
    available = serializers.BooleanField(help_text="Whether its file is on this machine.")
    original = serializers.CharField(allow_blank=True, help_text="Where a public trace was published.")
    servers = serializers.IntegerField(allow_null=True)
    gpus_per_server = serializers.IntegerField(allow_null=True)
    slot_seconds = serializers.FloatField(allow_null=True)


class LiveClusterSerializer(serializers.Serializer):
    """What a study of the live cluster would start from."""

    gpu_type = serializers.CharField()
    servers = serializers.IntegerField()
    gpus_per_server = serializers.IntegerField()
    slot_seconds = serializers.FloatField()
    policy = serializers.CharField()
    reserve_servers = serializers.IntegerField()
    unfinished_jobs = serializers.IntegerField()
    inference_servers = serializers.IntegerField(
        help_text="Servers of its largest inference cluster; 0 without one."
    )
    inference_gpu_type = serializers.CharField(allow_blank=True)


class InferenceUsageSerializer(serializers.Serializer):
    """Usage of an inference cluster that can be named."""

    name = serializers.CharField()
    description = serializers.CharField()
    available = serializers.BooleanField(help_text="Whether its file is on this machine.")
    original = serializers.CharField(allow_blank=True, help_text="Where a public curve was published.")


class LimitsSerializer(serializers.Serializer):
    """Limits of a request."""

    runs = serializers.IntegerField(
        help_text="Runs of a study: policies times numbers of servers, and of inference servers."
    )
    jobs = serializers.IntegerField(help_text="Jobs of a run.")
    gpus = serializers.IntegerField(help_text="GPUs of a run, those of inference servers included.")
    waiting_runs = serializers.IntegerField(help_text="Unfinished runs of all studies.")
    run_seconds = serializers.IntegerField(help_text="Seconds that a run may take.")


class ChoicesSerializer(serializers.Serializer):
    """What can be chosen. `live` is null while no server is connected; `problem` says why traces are
    missing."""

    policies = serializers.ListField(child=serializers.CharField(), help_text="The default one first.")
    traces = TraceSerializer(many=True)
    problem = serializers.CharField(allow_blank=True)
    live = LiveClusterSerializer(allow_null=True)
    inference_usages = InferenceUsageSerializer(many=True)
    borrowing_policies = serializers.ListField(
        child=serializers.CharField(), help_text="The policies that use borrowed servers."
    )
    newcomers = serializers.ListField(
        child=serializers.CharField(), help_text="Rules for newcomers, the default first."
    )
    pricing_policies = serializers.ListField(
        child=serializers.CharField(), help_text="The policies that can keep room for newcomers."
    )
    reclaims = serializers.ListField(child=serializers.CharField())
    forecasters = serializers.ListField(child=serializers.CharField())
    limits = LimitsSerializer()


class StudyRequestSerializer(StrictSerializer):
    """Jobs, a cluster, and the policies to compare on it. Omitted fields take the values of the trace's
    authors or of the live cluster."""

    source = serializers.ChoiceField(StudySource.choices, default=StudySource.TRACE)  # type: ignore[assignment]
    trace = fields.Text(
        max_length=200,
        allow_blank=True,
        default="",
        help_text="A trace of `choices/`; with source `trace`.",
    )
    name = fields.Name(max_length=200, allow_blank=True, default="")
    policies = serializers.ListField(child=fields.Text(max_length=40), min_length=1, max_length=100)
    servers = serializers.ListField(
        child=fields.Integer(min_value=1, max_value=LARGEST_INTEGER),
        max_length=100,
        default=list,
        help_text="One run of each policy for each number.",
    )
    gpus_per_server = fields.Integer(min_value=1, max_value=64, required=False, allow_null=True)
    gpu_type = fields.Text(max_length=100, allow_blank=True, default="")
    slot_seconds = fields.Number(min_value=0.1, max_value=86_400, required=False, allow_null=True)
    pauses = serializers.ChoiceField([one.value for one in Pauses], default=Pauses.MEASURED.value)
    fill = serializers.ChoiceField([one.value for one in Fill], required=False, allow_null=True)
    reserve_servers = fields.Integer(min_value=0, max_value=LARGEST_INTEGER, required=False, allow_null=True)
    promise_margin = fields.Number(
        min_value=0,
        max_value=0.9,
        required=False,
        allow_null=True,
        help_text="Share by which promises count on less than the measured throughput.",
    )
    failures_per_server_day = fields.Number(min_value=0, max_value=100, default=0.0)
    seed = fields.Integer(min_value=0, max_value=LARGEST_INTEGER, default=0)
    limit_jobs = fields.Integer(
        min_value=1,
        max_value=LARGEST_INTEGER,
        required=False,
        allow_null=True,
        help_text="Number of jobs, the first ones of the trace.",
    )
    best_effort_share = fields.Number(
        min_value=0,
        max_value=1,
        default=0.0,
        help_text="Share of a trace's jobs that have no deadline, by seed.",
    )
    with_declined = fields.Truth(
        default=False,
        help_text="With source `live`: also jobs that were declined and whose deadline is still ahead.",
    )

    newcomers = serializers.ListField(
        child=serializers.ChoiceField(NewcomersRule.choices),
        max_length=10,
        default=list,
        help_text="`open`: every newcomer that fits is promised its deadline. `prudent`: room is kept for "
        "those that need little. One run for each, with the policies in `pricing_policies` of `choices/`. "
        "Default: `open`, or the live cluster's rule.",
    )
    bound = fields.Truth(
        default=True,
        help_text="Also compute an upper bound: the deadlines that a schedule that knows the future could "
        "meet. Not available with loans.",
    )

    inference_servers = serializers.ListField(
        child=fields.Integer(min_value=0, max_value=LARGEST_INTEGER),
        max_length=100,
        default=list,
        help_text="Servers of an inference cluster that lends what it can spare: one run for each number, 0 "
        "without loans. Default: no loans. The fields below concern loans only.",
    )
    inference_usage = fields.Text(
        max_length=60,
        required=False,
        allow_null=True,
        help_text="Name of its usage trace in `choices/`; with source `live` also `measured`: the usage of "
        "the live inference cluster.",
    )
    inference_gpu_type = fields.Text(
        max_length=100,
        allow_blank=True,
        default="",
        help_text="A kind of GPU on which some job was measured. Default: T4, or that of the live inference "
        "cluster.",
    )
    reclaim = fields.Text(
        max_length=10,
        required=False,
        allow_null=True,
        help_text=sentence(LENDING["reclaim"], "one of `reclaims` of `choices/`"),
    )
    headroom = fields.Number(
        min_value=LENDING["headroom"].least,
        max_value=LENDING["headroom"].most,
        required=False,
        allow_null=True,
        help_text=sentence(LENDING["headroom"]),
    )
    forecaster = fields.Text(
        max_length=40,
        required=False,
        allow_null=True,
        help_text=sentence(LENDING["forecaster"], "one of `forecasters` of `choices/`"),
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if attrs["source"] == StudySource.TRACE and not attrs["trace"]:
            raise ValidationError({"trace": ["Name a trace, or take source live."]})
        return attrs


class RunSerializer(serializers.ModelSerializer):
    """One policy on one number of servers, beside a number of inference servers, and how far it is."""

    state = serializers.ChoiceField(WorkState.choices)
    progress = serializers.FloatField(help_text="Share of the jobs that have ended, 0 to 1.")

    class Meta:
        model = SimulationRun
        fields = (
            "id", "policy", "newcomers", "servers", "inference_servers", "state", "progress", "jobs_ended",
            "jobs_total", "simulated_seconds",
            "cancel_requested", "attempts", "started_at", "finished_at", "error",
        )  # fmt: skip


class FinishedRunSerializer(RunSerializer):
    """A run with its summary and the names of its Parquet files, once it is done."""

    summary = serializers.SerializerMethodField(
        help_text="The metrics of `manage.py simulate`; null before the end."
    )
    results = serializers.SerializerMethodField()

    class Meta:
        model = SimulationRun
        fields = (*RunSerializer.Meta.fields, "summary", "results")

    @extend_schema_field({"type": ["object", "null"], "additionalProperties": True})
    def get_summary(self, run: SimulationRun) -> dict[str, Any] | None:
        return run.summary

    @extend_schema_field(serializers.ListField(child=serializers.CharField()))
    def get_results(self, run: SimulationRun) -> list[str]:
        return list(result_files(run)) if run.state == WorkState.DONE else []


class StudySerializer(serializers.ModelSerializer):
    """A study with its runs."""

    source = serializers.ChoiceField(StudySource.choices)  # type: ignore[assignment]
    created_by = serializers.SerializerMethodField()
    runs = RunSerializer(many=True)
    notes = serializers.ListField(child=serializers.CharField(), help_text="Notes on the runs, in sentences.")
    compared_runs = serializers.ListField(
        child=serializers.IntegerField(), help_text="Runs in the comparison and the report."
    )

    class Meta:
        model = SimulationStudy
        fields = (
            "id", "name", "created_by", "created_at", "source", "trace", "gpu_type", "gpus_per_server",
            "slot_seconds",
            "pauses", "fill", "reserve_servers", "promise_margin", "failures_per_server_day", "seed",
            "limit_jobs",
            "best_effort_share", "bound", "inference_usage", "inference_gpu_type", "reclaim", "headroom",
            "forecaster", "notes",
            "compared_runs", "runs",
        )  # fmt: skip

    def get_created_by(self, study: SimulationStudy) -> str | None:
        return study.created_by.get_username() if study.created_by else None


class StudyDetailSerializer(StudySerializer):
    """A study with its runs and their comparison."""

    runs = FinishedRunSerializer(many=True)
    comparison = serializers.SerializerMethodField(
        help_text="Of the runs in `compared_runs`: `runs`, `table`, `warnings` and `figures` (Plotly's JSON "
        "by name). Null before the first run is done, and with `comparison=false`."
    )

    class Meta:
        model = SimulationStudy
        fields = (*StudySerializer.Meta.fields, "comparison")

    @extend_schema_field({"type": ["object", "null"], "additionalProperties": True})
    def get_comparison(self, study: SimulationStudy) -> dict[str, Any] | None:
        comparison: dict[str, Any] | None = self.context["comparison"]
        return comparison


class StudyFilterSerializer(StrictSerializer):
    source = serializers.ChoiceField(StudySource.choices, required=False)  # type: ignore[assignment]


class DetailFilterSerializer(StrictSerializer):
    comparison = serializers.BooleanField(
        default=True,
        help_text="false leaves the comparison out, which is large: for asking how far the runs are.",
    )
