"""Recoveries for pages, the API and the monitoring system. Counts identify no person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Count, QuerySet

from cluster.models import Server
from projects.models import User
from recovery.life_cycle.facts import PHASES, RecoveryPhase
from scheduling.choices import ProtectionState, RecoveryKind, RecoveryOutcome, StateSource
from scheduling.models import Job, JobProtection, Recovery
from scheduling.selectors.scope.visibility import visible_jobs

#: Period of the cluster's figures.
SUMMARY_WINDOW = timedelta(hours=24)


@dataclass(frozen=True)
class PhaseSpan:
    """One phase of a recovery. ``end``: None while it lasts."""

    phase: RecoveryPhase
    start: datetime
    end: datetime | None

    def seconds(self, now: datetime) -> float:
        """Return its duration so far."""
        return max(0.0, ((self.end or now) - self.start).total_seconds())


@dataclass(frozen=True)
class RecoverySummary:
    """A cluster's recent failures, and how its jobs are protected now.

    ``recovered``: by the farthest source of a rank. ``time_lost_seconds``: from detection until jobs trained
    again, plus work that was done twice. Announced moves count neither as failures nor as lost time.
    """

    window_seconds: float
    #: Number of jobs by protection.
    protection: dict[str, int]
    #: Number of failures by kind.
    failures: dict[str, int]
    recovered: dict[str, int]
    #: Number of recoveries that are not completed.
    under_way: int
    down_seconds: float
    lost_work_seconds: float

    @property
    def time_lost_seconds(self) -> float:
        return self.down_seconds + self.lost_work_seconds

    def total_failures(self) -> int:
        """Return the number of software and hardware failures."""
        return self.failures[RecoveryKind.SOFTWARE] + self.failures[RecoveryKind.HARDWARE]


def recoveries_of(job: Job) -> QuerySet[Recovery]:
    """Return a job's recoveries, newest first."""
    return Recovery.objects.filter(job=job).order_by("-pk")


def visible_recovery(user: User, job_id: str, failed_generation: int) -> Recovery | None:
    """Return one recovery of a job that the person may see."""
    found = Recovery.objects.select_related("job__project").filter(job__in=visible_jobs(user))
    return found.filter(job=job_id, failed_generation=failed_generation).first()


def phase_spans(found: Recovery) -> list[PhaseSpan]:
    """Return the observed phases in order; each lasts until the next observed one. `running` is left out:
    it has no end and is not part of the recovery."""
    starts = [(phase, found.time_of(phase)) for phase in PHASES]
    known = [(phase, start) for phase, start in starts if start is not None]
    ends = [start for _, start in known[1:]] + [found.ended_at]
    return [
        PhaseSpan(phase, start, end)
        for (phase, start), end in zip(known, ends, strict=True)
        if phase is not RecoveryPhase.RUNNING
    ]


def names_of_servers(found: Sequence[Recovery]) -> dict[int, str]:
    """Return the names of servers in these recoveries' sources, in one query."""
    servers = {one["server"] for each in found for one in each.sources}
    servers |= {holder for each in found for one in each.sources for holder in one["holders"]}
    return dict(Server.objects.filter(pk__in=servers).values_list("pk", "name"))


def protection_counts() -> dict[str, int]:
    """Return the number of training jobs by the protection of their state in memory."""
    counts = dict(JobProtection.objects.values_list("state").annotate(count=Count("pk")).order_by())
    return {state: counts.get(state, 0) for state in ProtectionState.values}


def recovery_summary(now: datetime, window: timedelta = SUMMARY_WINDOW) -> RecoverySummary:
    """Return recent failures and their cost."""
    recent = list(
        Recovery.objects.filter(detected_at__gt=now - window).only(
            "kind", "outcome", "source", "detected_at", "ended_at", "iteration_reached", "iteration_resumed",
            "iterations_per_second",
        )
    )  # fmt: skip
    kinds = Counter(one.kind for one in recent)
    failed = [one for one in recent if one.kind != RecoveryKind.ANNOUNCED]
    ended = Counter(one.source for one in failed if one.outcome == RecoveryOutcome.RECOVERED)
    return RecoverySummary(
        window_seconds=window.total_seconds(),
        protection=protection_counts(),
        failures={kind: kinds[kind] for kind in RecoveryKind.values},
        recovered={source: ended[source] for source in StateSource.values},
        under_way=sum(one.outcome == RecoveryOutcome.OPEN for one in failed),
        down_seconds=sum(one.down_seconds(now) for one in failed),
        lost_work_seconds=sum(one.lost_work_seconds() for one in failed),
    )


def phase_seconds(now: datetime, window: timedelta = SUMMARY_WINDOW) -> dict[str, list[float]]:
    """Return the seconds of each phase in recent successful recoveries."""
    recent = Recovery.objects.filter(detected_at__gt=now - window, outcome=RecoveryOutcome.RECOVERED)
    found: dict[str, list[float]] = {phase.value: [] for phase in PHASES[:-1]}
    for one in recent.exclude(kind=RecoveryKind.ANNOUNCED):
        for span in phase_spans(one):
            found[span.phase.value].append(span.seconds(now))
    return found
