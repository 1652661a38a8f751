"""Jobs, verdicts and what was seen of jobs, as the API writes them."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from scheduling.choices import JobState, PromiseOutcome, ServiceClass, StateSource, VoidReason
from scheduling.models import Artifact, Checkpoint, CurveLevel, Generation, Job, JobEvent, JobMetric, LogChunk
from scheduling.moments import rfc3339
from scheduling.selectors.jobs.environments import BuildQueue
from scheduling.selectors.jobs.job_times import planned_finish_at, planned_start_at, progress_share
from scheduling.selectors.jobs.jobs import assignments_of
from scheduling.selectors.jobs.nonfinite import warning_of
from scheduling.selectors.jobs.standing import standing
from scheduling.selectors.recovery.state_sources import sources_of_shards
from scheduling.services.snapshots.kinds import refusals_of
from scheduling.stored_verdict import AnswerCode, StoredVerdict, pending


class ShareSerializer(serializers.Serializer):
    """A number of GPUs from `start` to `end`."""

    start = serializers.DateTimeField()
    end = serializers.DateTimeField()
    gpus = serializers.IntegerField()


class OfferSerializer(serializers.Serializer):
    """A deadline that can be promised, held until `valid_until`. Accepting sooner gives an earlier
    deadline."""

    deadline_at = serializers.DateTimeField(
        help_text="The latest deadline, however late the offer is accepted."
    )
    valid_until = serializers.DateTimeField(allow_null=True)
    deadline_seconds = serializers.FloatField(
        allow_null=True,
        help_text=(
            "Seconds from acceptance (what-if: from submission) to the deadline that is then "
            "promised, as long as there is as much room as now."
        ),
    )


class TierOptionSerializer(serializers.Serializer):
    """A number of GPUs on which no smaller one is as fast."""

    gpus = serializers.IntegerField()
    step_seconds = serializers.FloatField(help_text="Seconds of an iteration.")
    is_upper_bound = serializers.BooleanField(help_text="Whether an iteration takes at most this long.")


class TierModeSerializer(serializers.Serializer):
    """What a model needs with experts in tiers, or with all states in device memory."""

    gpus = serializers.IntegerField(allow_null=True, help_text="The fewest; null if no number holds it.")
    binding = serializers.CharField(help_text="What binds on fewer GPUs; empty if one is enough.")
    options = TierOptionSerializer(many=True)


class TiersSerializer(serializers.Serializer):
    """GPUs and iteration times of a model with experts, with and without tiers."""

    with_tiers = TierModeSerializer()
    without_tiers = TierModeSerializer()


class VerdictSerializer(serializers.Serializer):
    """The answer to a deadline. Read from what the planner wrote, so that every field is always there."""

    decision = serializers.ChoiceField(("admitted", "declined", "pending"))
    reason_code = serializers.CharField(help_text="Stable, for programs.")
    reason = serializers.CharField(help_text="A sentence with the numbers.")
    minimum_satisfactory_share = ShareSerializer(many=True)
    planned_start_at = serializers.DateTimeField(allow_null=True)
    planned_finish_at = serializers.DateTimeField(allow_null=True)
    slack_seconds = serializers.FloatField(allow_null=True)
    counts_on = serializers.CharField(
        help_text="Number of lost servers that a promise survives, and the work that each loss repeats."
    )
    missing_gpus = serializers.IntegerField(help_text="GPUs that were missing at the tightest time.")
    offer = OfferSerializer(allow_null=True)
    no_offer = serializers.CharField(
        help_text="Why a declined job has no offer though a later deadline may be possible: a quota, another "
        "offer of its project, or another job of it that was tried first, in vain. Else empty."
    )
    decision_id = serializers.IntegerField(allow_null=True)
    needs_profiling = serializers.BooleanField(help_text="The scaling curve has to be measured first.")
    tiers = TiersSerializer(
        allow_null=True,
        help_text="For models with experts of known sizes. In a job's verdict only if its function uses "
        "tiers or does not fit; always in a what-if.",
    )

    def to_representation(self, instance: StoredVerdict) -> dict[str, Any]:
        offer = instance.offer
        return {
            "decision": instance.decision,
            "reason_code": instance.reason_code,
            "reason": self.context.get("mask", str)(instance.reason),
            "minimum_satisfactory_share": [
                {"start": _time(piece["start"]), "end": _time(piece["end"]), "gpus": piece["gpus"]}
                for piece in instance.minimum_satisfactory_share
            ],
            "planned_start_at": _time(instance.planned_start_at),
            "planned_finish_at": _time(instance.planned_finish_at),
            "slack_seconds": instance.slack_seconds,
            "counts_on": instance.counts_on,
            "missing_gpus": instance.missing_gpus,
            "offer": offer
            and {
                "deadline_at": _time(offer["deadline_at"]),
                "valid_until": _time(offer.get("valid_until")),
                "deadline_seconds": offer.get("deadline_seconds"),
            },
            "no_offer": instance.no_offer,
            "decision_id": instance.decision_id,
            "needs_profiling": instance.needs_profiling,
            "tiers": instance.tiers,
        }


def _time(value: datetime | float | str | None) -> str | None:
    """RFC 3339 in UTC, from a time, an RFC 3339 text or Unix seconds."""
    if value is None:
        return None
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    elif not isinstance(value, datetime):
        return rfc3339(value)
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _finish(job: Job) -> datetime | None:
    """Planned or actual finish; a job that was never let in has none."""
    return None if job.state == JobState.DECLINED else planned_finish_at(job)


def verdict_of(job: Job, queue: BuildQueue | None = None) -> StoredVerdict:
    """The stored verdict, or that there is none yet, and why. ``queue``: of builds, read for many jobs."""
    if job.verdict:
        return StoredVerdict.from_json(job.verdict)
    if job.decided_at is not None:
        ended = "failed" if job.state == JobState.FAILED else f"was {job.state}"
        return pending(job.state, f"The job {ended} before it was decided.")
    if job.state == JobState.PROFILING:
        reason = "Its speed on different numbers of GPUs is being measured."
        return pending(AnswerCode.PROFILING, reason, needs_profiling=True)
    wait = (queue or BuildQueue()).wait_of(job)
    return pending(AnswerCode.UNDECIDED, wait or "Not decided yet.")


class JobFunctionSerializer(serializers.Serializer):
    """The version of the function that the job trains."""

    id = serializers.IntegerField(source="function_id")
    name = serializers.CharField(source="function.name")
    version = serializers.IntegerField(source="number")
    digest = serializers.CharField(source="bundle_id")
    entry = serializers.CharField()


class JobTargetSerializer(serializers.Serializer):
    metric = serializers.CharField()
    at_least = serializers.FloatField(required=False)
    at_most = serializers.FloatField(required=False)


class JobTerminationSerializer(serializers.Serializer):
    max_iterations = serializers.IntegerField()
    target = JobTargetSerializer(allow_null=True)


class JobProtectionSerializer(serializers.Serializer):
    """What the owner asked for; members that were not given are missing."""

    replicas = serializers.IntegerField(required=False)
    frequency = serializers.IntegerField(required=False)


class JobStandingSerializer(serializers.Serializer):
    """Outcome of the deadline so far."""

    code = serializers.ChoiceField(("", "met", "missed", "late", "void", "at_risk"))
    text = serializers.CharField(allow_blank=True)


class JobSerializer(serializers.ModelSerializer):
    """A job. `iterations_done` is what was reported; `gpus` is how many it has at this moment."""

    project = serializers.CharField(source="project.name")
    owner = serializers.CharField(source="owner.username")
    labels = serializers.DictField(child=serializers.CharField())
    function = JobFunctionSerializer(source="function_version")
    hyperparameters = serializers.DictField()
    termination = serializers.SerializerMethodField()
    service_class = serializers.ChoiceField(ServiceClass.choices)
    data = serializers.ListField(  # type: ignore[assignment]
        child=serializers.DictField(child=serializers.CharField())
    )
    protection = JobProtectionSerializer(source="asked_protection")
    state = serializers.ChoiceField(JobState.choices)
    promise_outcome = serializers.ChoiceField(PromiseOutcome.choices)
    void_reason = serializers.SerializerMethodField()
    progress = serializers.SerializerMethodField()
    gpus = serializers.IntegerField()
    gpu_kind = serializers.CharField(allow_null=True)
    emulated = serializers.BooleanField(help_text="Whether its GPUs are emulated on CPU slots.")
    planned_start_at = serializers.SerializerMethodField()
    planned_finish_at = serializers.SerializerMethodField()
    slack_seconds = serializers.SerializerMethodField(
        help_text="Seconds from the planned or actual finish to the deadline."
    )
    refused_kinds = serializers.SerializerMethodField(
        help_text="Kinds of GPU that could not take the job, each with the reason. `gpu_kind` is the kind "
        "that it requests or runs on."
    )
    verdict = serializers.SerializerMethodField()
    standing = serializers.SerializerMethodField(
        help_text="The state of its deadline: `code` (`met`, `missed`, `late`, `void`, `at_risk`, "
        "or empty) and a sentence."
    )
    warning = serializers.SerializerMethodField(
        help_text="A sentence if the loss or the final weights are NaN or infinite, else empty."
    )
    failure = serializers.DictField(allow_null=True)
    resubmission_of = serializers.CharField(source="resubmission_of_id", allow_null=True)
    final_metrics = serializers.DictField(allow_null=True)

    class Meta:
        model = Job
        fields = (
            "id", "project", "owner", "name", "labels", "function", "hyperparameters", "termination",
            "service_class", "deadline_at", "data", "checkpoint_seconds", "seed", "lossy", "codecs",
            "protection", "state", "promised",
            "at_risk",
            "late", "paused_by_owner", "promise_outcome", "void_reason", "submitted_at", "decided_at",
            "started_at",
            "finished_at", "iterations_done", "progress", "iterations_per_second", "gpus", "gpu_kind",
            "refused_kinds", "emulated",
            "planned_start_at", "planned_finish_at", "slack_seconds", "verdict", "standing", "warning",
            "failure", "resubmission_of",
            "final_metrics",
        )  # fmt: skip

    @extend_schema_field(JobTerminationSerializer)
    def get_termination(self, job: Job) -> dict[str, Any]:
        return {"max_iterations": job.max_iterations, "target": job.target}

    @extend_schema_field(serializers.ChoiceField(VoidReason.choices, allow_null=True))
    def get_void_reason(self, job: Job) -> str | None:
        return job.void_reason or None

    @extend_schema_field({"type": "number", "minimum": 0, "maximum": 1})
    def get_progress(self, job: Job) -> float:
        return progress_share(job)

    @extend_schema_field(serializers.DateTimeField(allow_null=True))
    def get_planned_start_at(self, job: Job) -> str | None:
        return _time(planned_start_at(job, timezone.now()))

    @extend_schema_field(serializers.DateTimeField(allow_null=True))
    def get_planned_finish_at(self, job: Job) -> str | None:
        return _time(_finish(job))

    def get_slack_seconds(self, job: Job) -> float | None:
        finish = _finish(job)
        if finish is None or job.deadline_at is None:
            return None
        return (job.deadline_at - finish).total_seconds()

    @extend_schema_field({"type": "object", "additionalProperties": {"type": "string"}})
    def get_refused_kinds(self, job: Job) -> dict[str, str]:
        mask = self.context.get("mask", str)
        return {kind: str(mask(said.reason)) for kind, said in refusals_of(job).items()}

    @extend_schema_field(VerdictSerializer)
    def get_verdict(self, job: Job) -> dict[str, Any]:
        return VerdictSerializer(verdict_of(job, self.context.get("build_queue")), context=self.context).data

    def get_warning(self, job: Job) -> str:
        return warning_of(job)

    @extend_schema_field(JobStandingSerializer)
    def get_standing(self, job: Job) -> dict[str, str]:
        found = standing(job, timezone.now())
        return {"code": found.code, "text": self.context.get("mask", str)(found.text)}


class DeadlineAnswerSerializer(serializers.Serializer):
    """The job after the question, the verdict on the new deadline, and whether anything changed."""

    job = JobSerializer()
    verdict = VerdictSerializer()
    changed = serializers.BooleanField()


# --- what was seen ------------------------------------------------------------------------------------------


class EventSerializer(serializers.ModelSerializer):
    """One line of a job's history with its reason in words and numbers."""

    detail = serializers.DictField()
    message = serializers.SerializerMethodField()
    decision = serializers.IntegerField(source="decision_id", allow_null=True)

    class Meta:
        model = JobEvent
        fields = ("id", "happened_at", "kind", "message", "detail", "actor", "decision")

    def get_message(self, event: JobEvent) -> str:
        return str(self.context.get("mask", str)(event.message))


class MetricSerializer(serializers.ModelSerializer):
    """Values that the function reported at one iteration, by the latest generation that trained it."""

    values = serializers.SerializerMethodField()

    class Meta:
        model = JobMetric
        fields = (
            "iteration",
            "generation",
            "values",
            "iterations_per_second",
            "train_seconds",
            "gpus",
            "measured_at",
        )

    @extend_schema_field({"type": "object", "additionalProperties": True})
    def get_values(self, metric: JobMetric) -> dict[str, Any]:
        names = self.context.get("names")
        return {name: value for name, value in metric.values.items() if not names or name in names}


class LogChunkSerializer(serializers.ModelSerializer):
    """A piece of one worker's output."""

    text = serializers.CharField(trim_whitespace=False, allow_blank=True)

    class Meta:
        model = LogChunk
        fields = ("id", "generation", "rank", "text", "received_at")


class LogPageSerializer(serializers.Serializer):
    """Pieces in order. Ask again with `after` = `next_after`; `more` says that there is more already."""

    results = LogChunkSerializer(many=True)
    next_after = serializers.IntegerField()
    more = serializers.BooleanField()


class CheckpointSerializer(serializers.ModelSerializer):
    """A durable state of the job."""

    class Meta:
        model = Checkpoint
        fields = ("generation", "iteration", "size_bytes", "reason", "store_seconds", "stored_at")


class ArtifactSerializer(serializers.ModelSerializer):
    """A file that the completed job left."""

    class Meta:
        model = Artifact
        fields = ("name", "size_bytes", "sha256", "stored_at")


class CurveLevelSerializer(serializers.ModelSerializer):
    """One measured level of a scaling curve. `host_memory_bytes`: the most that one worker took of its host;
    `reserved_memory_bytes`: what is reserved for each (0: not measured, it has its GPU's share)."""

    void = serializers.BooleanField(
        read_only=True,
        help_text="Emulated devices: measuring overran the pace by over 5 %: it shows the host's speed.",
    )

    class Meta:
        model = CurveLevel
        fields = (
            "gpus", "iterations_per_second", "train_seconds", "pause_seconds", "memory_bytes",
            "host_memory_bytes", "reserved_memory_bytes", "samples", "source", "measured_at", "overrun",
            "void",
        )  # fmt: skip


class CurveSerializer(serializers.Serializer):
    """The scaling curve on which the job's promise rests: measured levels alone."""

    gpu_kind = serializers.CharField(allow_null=True)
    emulated = serializers.BooleanField()
    plan_family = serializers.CharField(
        help_text="Family of the runtime plans under which the levels were measured."
    )
    state = serializers.CharField()
    complete = serializers.BooleanField(
        help_text="Whether measuring stopped because more GPUs were no faster."
    )
    failure = serializers.CharField(allow_blank=True)
    measured_at = serializers.DateTimeField(allow_null=True)
    levels = CurveLevelSerializer(many=True)


class ShardSourcesSerializer(serializers.Serializer):
    """How many shards of a state were read from where."""

    source = serializers.ChoiceField(StateSource.choices)  # type: ignore[assignment]
    shards = serializers.IntegerField()


class GenerationSerializer(serializers.ModelSerializer):
    """GPUs that the job really had from `start` to `end` (null: still has).

    `pause_seconds`: from the order to train to the first iteration; of these, `waiting_seconds` until its
    state was found and `loading_seconds` from then until it was loaded.
    """

    start = serializers.DateTimeField(source="live_at", allow_null=True)
    end = serializers.DateTimeField(source="retired_at", allow_null=True)
    gpus = serializers.IntegerField(source="world_size")
    generation = serializers.IntegerField(source="number")
    servers = serializers.SerializerMethodField()
    state_from = serializers.SerializerMethodField()

    class Meta:
        model = Generation
        fields = (
            "generation",
            "start",
            "end",
            "gpus",
            "servers",
            "start_iteration",
            "pause_seconds",
            "waiting_seconds",
            "loading_seconds",
            "state_from",
            "reason",
        )

    @extend_schema_field(serializers.ListField(child=serializers.CharField()))
    def get_servers(self, generation: Generation) -> list[str]:
        return sorted({assignment.gpu.server.name for assignment in assignments_of(generation)})

    @extend_schema_field(ShardSourcesSerializer(many=True))
    def get_state_from(self, generation: Generation) -> list[dict[str, Any]]:
        by_rank = {one.rank: one.gpu.server_id for one in assignments_of(generation)}
        counted = Counter(
            sources_of_shards(generation.start, [by_rank[rank] for rank in range(generation.world_size)])
        )
        return [
            {"source": source.value, "shards": counted[source]} for source in StateSource if counted[source]
        ]


class PlanSerializer(serializers.Serializer):
    """Planned GPUs over time beside those it really had."""

    planned = ShareSerializer(many=True)
    finish_at = serializers.DateTimeField(allow_null=True)
    actual = GenerationSerializer(many=True)
