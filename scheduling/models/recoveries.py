"""Recoveries: the phases in which a job that lost its generation returns to training."""

from __future__ import annotations

from datetime import datetime

from django.db import models
from django.db.models import Q
from django.utils import timezone

from recovery.life_cycle.facts import PHASES, RecoveryPhase
from scheduling.choices import ProtectionState, RecoveryKind, RecoveryOutcome, StateSource
from scheduling.models.jobs import Job


class Recovery(models.Model):
    """One failure of a job's training generation, and its recovery (docs/protocols.md 1.2).

    Further losses before the job trains again belong to the same recovery.
    `scheduling/services/generations/recovery_facts.py` defines the time of each phase.
    """

    PHASES = [(phase.value, phase.value.replace("_", " ").capitalize()) for phase in PHASES]

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="recoveries")
    #: Number of the generation that failed.
    failed_generation = models.PositiveIntegerField()
    #: The generation that replaces the failed one; null while there is none.
    recovering_generation = models.PositiveIntegerField(null=True, blank=True)
    kind = models.CharField(max_length=10, choices=RecoveryKind.choices, default=RecoveryKind.SOFTWARE)
    reason = models.CharField(max_length=300)
    #: Phase that is under way.
    phase = models.CharField(max_length=16, choices=PHASES, default=RecoveryPhase.DETECTED.value)
    outcome = models.CharField(max_length=10, choices=RecoveryOutcome.choices, default=RecoveryOutcome.OPEN)
    #: Why it was broken off; empty otherwise.
    broken_off_because = models.CharField(max_length=200, blank=True)
    #: `{"server", "name", "silent_at", "fenced_at"}` of each lost server.
    lost_servers = models.JSONField(default=list)
    #: Ranks of the failed generation on lost servers.
    lost_ranks = models.JSONField(default=list)
    #: Number of losses; those within two seconds count as one.
    losses = models.PositiveIntegerField(default=1)
    #: Number of generations that were to recover and did not train, and how the last of them ended.
    attempts = models.PositiveIntegerField(default=0)
    last_attempt = models.CharField(max_length=300, blank=True)
    #: `{"rank", "server", "source", "holders"}` of each rank of the recovering generation.
    sources = models.JSONField(default=list)
    #: The farthest source; empty before sources are chosen.
    source = models.CharField(max_length=12, choices=StateSource.choices, blank=True)
    iteration_reached = models.PositiveBigIntegerField(default=0)
    #: Known once the job trains again.
    iteration_resumed = models.PositiveBigIntegerField(null=True, blank=True)
    #: Speed before the failure; 0 if unknown.
    iterations_per_second = models.FloatField(default=0.0)
    #: When the server was found silent or the worker's exit was reported.
    detected_at = models.DateTimeField(default=timezone.now)
    frozen_at = models.DateTimeField(null=True, blank=True)
    resourced_at = models.DateTimeField(null=True, blank=True)
    sources_chosen_at = models.DateTimeField(null=True, blank=True)
    starting_at = models.DateTimeField(null=True, blank=True)
    loading_at = models.DateTimeField(null=True, blank=True)
    verified_at = models.DateTimeField(null=True, blank=True)
    running_at = models.DateTimeField(null=True, blank=True)
    #: When the last lost server was fenced; null if none was lost.
    fenced_at = models.DateTimeField(null=True, blank=True)
    #: When the present phase began.
    phase_at = models.DateTimeField(default=timezone.now)
    #: When it ended, successfully or not.
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(fields=["job", "failed_generation"], name="recovery_once_per_generation"),
            models.UniqueConstraint(
                fields=["job"], condition=Q(outcome=RecoveryOutcome.OPEN), name="job_recovers_once_at_a_time"
            ),
            models.CheckConstraint(
                condition=Q(outcome=RecoveryOutcome.OPEN, ended_at__isnull=True)
                | ~Q(outcome=RecoveryOutcome.OPEN) & Q(ended_at__isnull=False),
                name="ended_recovery_has_a_time",
            ),
        ]
        indexes = [
            models.Index(fields=["job"], condition=Q(outcome=RecoveryOutcome.OPEN), name="recovery_open"),
            models.Index(fields=["detected_at"], name="recovery_detected_at"),
        ]

    def iterations_lost(self) -> int | None:
        """Return the reported iterations that were trained again; None until known."""
        if self.iteration_resumed is None:
            return None
        return max(0, self.iteration_reached - self.iteration_resumed)

    def lost_work_seconds(self) -> float:
        """Return the seconds that these iterations had taken; 0 if their speed is unknown."""
        lost = self.iterations_lost() or 0
        return lost / self.iterations_per_second if self.iterations_per_second > 0 else 0.0

    def down_seconds(self, now: datetime) -> float:
        """Return the seconds from detection until the job trained again, or until now."""
        return max(0.0, ((self.ended_at or now) - self.detected_at).total_seconds())

    def time_of(self, phase: RecoveryPhase) -> datetime | None:
        """Return when the phase began; None if it was not observed, or has not begun."""
        found: datetime | None = getattr(self, f"{phase.value}_at")
        return found


class JobProtection(models.Model):
    """How the state of a training job is protected, and since when. Written when that changes."""

    job = models.OneToOneField(Job, on_delete=models.CASCADE, related_name="memory_protection")
    state = models.CharField(max_length=8, choices=ProtectionState.choices)
    since = models.DateTimeField(default=timezone.now)
