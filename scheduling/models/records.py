"""Observations of a job: events with reasons, metrics, logs, checkpoints and artifacts."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils import timezone

from scheduling.choices import JobEventKind
from scheduling.models.jobs import Job


class JobEvent(models.Model):
    """One entry of a job's history: a state change or a decision, with its reason in words and numbers."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="events")
    happened_at = models.DateTimeField(default=timezone.now)
    kind = models.CharField(max_length=40)
    #: The event in a sentence.
    message = models.TextField()
    #: The event's facts by name.
    detail = models.JSONField(default=dict)
    #: Name of the user who caused it; empty for the platform.
    actor = models.CharField(max_length=150, blank=True)
    decision = models.ForeignKey(
        "scheduling.Decision", on_delete=models.SET_NULL, null=True, related_name="events"
    )

    class Meta:
        ordering = ["id"]
        indexes = [
            models.Index(fields=["job", "id"]),
            models.Index(
                fields=["happened_at"], condition=Q(kind=JobEventKind.MADE_WAY), name="event_made_way"
            ),
        ]


class JobMetric(models.Model):
    """Values that the function reported at one iteration."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="metrics")
    generation = models.PositiveIntegerField()
    iteration = models.PositiveBigIntegerField()
    #: Metrics by name.
    values = models.JSONField()
    iterations_per_second = models.FloatField(default=0.0)
    train_seconds = models.FloatField(default=0.0)
    #: Peak host memory of rank 0; 0 if not measured.
    host_memory_bytes = models.BigIntegerField(default=0)
    gpus = models.PositiveIntegerField(default=0)
    measured_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["iteration"]
        constraints = [models.UniqueConstraint(fields=["job", "generation", "iteration"], name="metric_once")]


class JobExperts(models.Model):
    """What a job's workers reported of its mixture-of-experts layers (docs/protocols.md 2.11)."""

    job = models.OneToOneField(Job, on_delete=models.CASCADE, related_name="experts")
    #: Generation and iteration of the newest record.
    generation = models.PositiveIntegerField(default=0)
    iteration = models.PositiveBigIntegerField(default=0)
    latest = models.JSONField(default=dict)
    #: Thinned history of the whole job, and its last packing decisions.
    history = models.JSONField(default=list, blank=True)
    decisions = models.JSONField(default=list, blank=True)


class LogChunk(models.Model):
    """A piece of one worker's output. ``offset`` counts bytes, so that a repeated piece is recognised."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="log_chunks")
    generation = models.PositiveIntegerField()
    rank = models.PositiveIntegerField()
    offset = models.PositiveBigIntegerField()
    text = models.TextField()
    received_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(fields=["job", "generation", "rank", "offset"], name="log_chunk_once"),
        ]


class Checkpoint(models.Model):
    """A recovery point: a job's state after an iteration, with one shard for each rank that wrote it.

    It is complete once every shard is durable. Only then may a generation start from it.
    """

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="checkpoints")
    generation = models.PositiveIntegerField()
    iteration = models.PositiveBigIntegerField()
    #: Folder of its shards.
    uri = models.CharField(max_length=500)
    #: Total size of its durable shards.
    size_bytes = models.BigIntegerField(default=0)
    world_size = models.PositiveIntegerField(default=1)
    complete_at = models.DateTimeField(null=True, blank=True)
    #: Digest of the writing generation's runtime plan; empty in old versions.
    runtime_plan_digest = models.CharField(max_length=64, blank=True)
    reason = models.CharField(max_length=20)
    store_seconds = models.FloatField(default=0.0)
    stored_at = models.DateTimeField(default=timezone.now)
    deleted_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-iteration"]
        constraints = [
            models.UniqueConstraint(fields=["job", "generation", "iteration"], name="checkpoint_once")
        ]


class StateShard(models.Model):
    """One rank's durable part of a recovery point."""

    checkpoint = models.ForeignKey(Checkpoint, on_delete=models.CASCADE, related_name="shards")
    #: The rank that wrote it.
    number = models.PositiveIntegerField()
    uri = models.CharField(max_length=500)
    size_bytes = models.BigIntegerField()
    #: Empty for shards of old versions.
    sha256 = models.CharField(max_length=64, blank=True)
    stored_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["number"]
        constraints = [models.UniqueConstraint(fields=["checkpoint", "number"], name="shard_once")]


class Artifact(models.Model):
    """A file that a completed job leaves: final weights, metrics, what the function saved."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="artifacts")
    name = models.CharField(max_length=200)
    uri = models.CharField(max_length=500)
    size_bytes = models.BigIntegerField()
    sha256 = models.CharField(max_length=64)
    stored_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["job", "name"], name="artifact_name_once_per_job")]


class AppliedEvent(models.Model):
    """Ids of applied agents' events, so that a repeated report changes nothing."""

    id = models.UUIDField(primary_key=True)
    applied_at = models.DateTimeField(default=timezone.now, db_index=True)
