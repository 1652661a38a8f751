"""Recoveries: how a job that lost its generation came to train again, phase by phase."""

from __future__ import annotations

from datetime import datetime

from django.db import models
from django.db.models import Q
from django.utils import timezone

from recovery.life_cycle.facts import PHASES, RecoveryPhase
from scheduling.choices import ProtectionState, RecoveryKind, RecoveryOutcome, StateSource
from scheduling.models.jobs import Job


class Recovery(models.Model):
    """One failure of one job's training generation, and the way back (docs/protocols.md 1.2).

    Losses that follow one another before the job trains again are one recovery. What a phase's time is taken
    from is said in `scheduling/services/generations/recovery_facts.py`.
    """

    PHASES = [(phase.value, phase.value.replace("_", " ").capitalize()) for phase in PHASES]

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="recoveries")
    failed_generation = models.PositiveIntegerField()
    #: The one that is to go on, or went on; null while there is none.
    recovering_generation = models.PositiveIntegerField(null=True, blank=True)
    kind = models.CharField(max_length=10, choices=RecoveryKind.choices, default=RecoveryKind.SOFTWARE)
    reason = models.CharField(max_length=300)
    phase = models.CharField(max_length=16, choices=PHASES, default=RecoveryPhase.DETECTED.value)
    outcome = models.CharField(max_length=10, choices=RecoveryOutcome.choices, default=RecoveryOutcome.OPEN)
    #: Why it was broken off; empty otherwise.
    broken_off_because = models.CharField(max_length=200, blank=True)
    #: `{"server", "name", "silent_at", "fenced_at"}` of each server that was lost.
    lost_servers = models.JSONField(default=list)
    #: Ranks of the failed generation that were on them.
    lost_ranks = models.JSONField(default=list)
    #: How many losses, those within two seconds counted as one.
    losses = models.PositiveIntegerField(default=1)
    #: Generations that were to go on and did not train, and what became of the last of them.
    attempts = models.PositiveIntegerField(default=0)
    last_attempt = models.CharField(max_length=300, blank=True)
    #: `{"rank", "server", "source", "holders"}` of each rank of the recovering generation.
    sources = models.JSONField(default=list)
    #: The farthest of them; empty before they are chosen.
    source = models.CharField(max_length=12, choices=StateSource.choices, blank=True)
    iteration_reached = models.PositiveBigIntegerField(default=0)
    #: Known once it trains again.
    iteration_resumed = models.PositiveBigIntegerField(null=True, blank=True)
    #: Before the failure; 0 where unknown.
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
    #: When the last lost server was given up; null where none was lost.
    fenced_at = models.DateTimeField(null=True, blank=True)
    #: When the present phase began.
    phase_at = models.DateTimeField(default=timezone.now)
    #: When it ended, with success or without.
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
        """Iterations that had been reported and were trained again; None before it is known."""
        if self.iteration_resumed is None:
            return None
        return max(0, self.iteration_reached - self.iteration_resumed)

    def lost_work_seconds(self) -> float:
        """What these iterations had taken; 0 where their pace is unknown."""
        lost = self.iterations_lost() or 0
        return lost / self.iterations_per_second if self.iterations_per_second > 0 else 0.0

    def down_seconds(self, now: datetime) -> float:
        """From detection until it trained again; until now where it does not yet."""
        return max(0.0, ((self.ended_at or now) - self.detected_at).total_seconds())

    def time_of(self, phase: RecoveryPhase) -> datetime | None:
        """When the phase began; None where it was not seen, or not yet."""
        found: datetime | None = getattr(self, f"{phase.value}_at")
        return found


class JobProtection(models.Model):
    """How the state of a job that trains is protected, and since when. Written when that changes."""

    job = models.OneToOneField(Job, on_delete=models.CASCADE, related_name="memory_protection")
    state = models.CharField(max_length=8, choices=ProtectionState.choices)
    since = models.DateTimeField(default=timezone.now)
