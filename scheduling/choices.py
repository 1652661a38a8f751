"""States of jobs and generations, their transitions, groups and colours."""

from __future__ import annotations

from django.db import models


class ServiceClass(models.TextChoices):
    SLO = "slo", "Hard deadline"
    SOFT = "soft", "Soft deadline"
    BEST_EFFORT = "best_effort", "Best effort"


class JobState(models.TextChoices):
    SUBMITTED = "submitted", "Submitted"
    PROFILING = "profiling", "Profiling"
    DECLINED = "declined", "Declined"
    ADMITTED = "admitted", "Admitted"
    RUNNING = "running", "Running"
    SUSPENDED = "suspended", "Suspended"
    COMPLETED = "completed", "Completed"
    FAILED = "failed", "Failed"
    CANCELLED = "cancelled", "Cancelled"


TERMINAL_STATES = (JobState.DECLINED, JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)
UNDECIDED_STATES = (JobState.SUBMITTED, JobState.PROFILING)
PLANNED_STATES = (JobState.ADMITTED, JobState.RUNNING, JobState.SUSPENDED)

JOB_TRANSITIONS: dict[JobState, tuple[JobState, ...]] = {
    JobState.SUBMITTED: (
        JobState.PROFILING,
        JobState.ADMITTED,
        JobState.DECLINED,
        JobState.FAILED,
        JobState.CANCELLED,
    ),
    JobState.PROFILING: (JobState.ADMITTED, JobState.DECLINED, JobState.FAILED, JobState.CANCELLED),
    JobState.ADMITTED: (JobState.RUNNING, JobState.CANCELLED, JobState.FAILED),
    JobState.RUNNING: (JobState.SUSPENDED, JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED),
    JobState.SUSPENDED: (JobState.RUNNING, JobState.CANCELLED, JobState.FAILED),
    JobState.DECLINED: (),
    JobState.COMPLETED: (),
    JobState.FAILED: (),
    JobState.CANCELLED: (),
}

JOB_COLOURS = {
    JobState.SUBMITTED: "#78909c",
    JobState.PROFILING: "#7e57c2",
    JobState.DECLINED: "#8d6e63",
    JobState.ADMITTED: "#1e88e5",
    JobState.RUNNING: "#2e7d32",
    JobState.SUSPENDED: "#ef8e19",
    JobState.COMPLETED: "#00695c",
    JobState.FAILED: "#c62828",
    JobState.CANCELLED: "#757575",
}


class JobEventKind(models.TextChoices):
    """Kinds of entries in a job's history. Further kinds are its states and the kinds of its changes."""

    ASKED_ELSEWHERE = "asked_elsewhere", "Asked of another kind of GPU"
    AT_RISK = "at_risk", "At risk"
    AWAITS_LEVELS = "awaits_levels", "Waits for measurements"
    AWAITS_PLAN = "awaits_plan", "Waits for a communication plan"
    BROKEN_OFF = "broken_off", "Broken off"
    CHECKPOINT = "checkpoint", "Checkpoint stored"
    DEADLINE_CHANGED = "deadline_changed", "Deadline changed"
    FAILURE = "failure", "Failure"
    INTERRUPTED = "interrupted", "Interrupted"
    LATE = "late", "Late"
    MADE_WAY = "made_way", "Made way for a measurement"
    MEASURED_SINCE = "measured_since", "Measured meanwhile"
    MEMORY_RAISED = "memory_raised", "Memory raised"
    NO_PORT = "no_port", "No free port"
    NO_QUOTA = "no_quota", "No quota"
    NONFINITE = "nonfinite", "Not finite"
    OFFER = "offer", "Offer"
    OFFER_DECLINED = "offer_declined", "Offer declined"
    PAUSED = "paused", "Paused"
    PLAN_TAKEN_UP = "plan_taken_up", "Plan taken up"
    PLANNED_AGAIN = "planned_again", "Planned again"
    PROFILED = "profiled", "Profiled"
    PROFILING = "profiling", "Profiling"
    PROMISE_NOT_RESTORED = "promise_not_restored", "Promise not restored"
    PROMISED_AGAIN = "promised_again", "Promised again"
    RECONCILED = "reconciled", "Reconciled"
    RECOVERED = "recovered", "Recovered"
    RECOVERING = "recovering", "Recovering"
    REPORT_REFUSED = "report_refused", "Report refused"
    RESCALED = "rescaled", "Rescaled"
    RESUMED = "resumed", "Resumed"
    SET_ASIDE = "set_aside", "Set aside"
    STATE_TAKEN = "state_taken", "State loaded"
    SUBMITTED = "submitted", "Submitted"
    SUSPENDING = "suspending", "Suspending"


class PromiseOutcome(models.TextChoices):
    NONE = "none", "No promise"
    OPEN = "open", "Open"
    MET = "met", "Met"
    MISSED = "missed", "Missed"
    VOID = "void", "Void"


class VoidReason(models.TextChoices):
    FUNCTION_SLOWER = "function_slower_than_profile", "Function slower than its profile"
    FUNCTION_FAILED = "function_failed", "Function failed"
    CANCELLED = "cancelled", "Cancelled"
    PAUSED = "paused_by_owner", "Paused by its owner"
    FAILURES = "failures_beyond_reserve", "Failures beyond the reserve"
    FAILED_REPEATEDLY = "failed_repeatedly", "Failed repeatedly"


class Lossy(models.TextChoices):
    """Whether lossy codecs may compress a job's gradients."""

    REFUSED = "refused", "Refused"
    ALLOWED = "allowed", "Allowed"


class Purpose(models.TextChoices):
    TRAINING = "training", "Training"
    PROFILING = "profiling", "Profiling"


class GenerationState(models.TextChoices):
    PREPARING = "preparing", "Preparing"
    READY = "ready", "Ready"
    HANDOVER = "handover", "Handover"
    LIVE = "live", "Live"
    RETIRED = "retired", "Retired"


#: States of a generation that does not train yet.
COMING_STATES = (GenerationState.PREPARING, GenerationState.READY, GenerationState.HANDOVER)


class RetireReason(models.TextChoices):
    """Why a generation ended. The sentence beside it is for people only."""

    TAKEN_OVER = "taken_over", "Taken over"  # by its successor
    SUSPENDED = "suspended", "Suspended"
    LET_GO = "let_go", "Let go"  # its job ended or has another plan
    GIVEN_UP = "given_up", "Given up"  # it did not take over
    LOST = "lost", "Lost"  # its server or a worker was lost
    FAILED = "failed", "Failed"
    MEASURED = "measured", "Measured"  # what was requested, or as much as fits
    MEASURING_TIMEOUT = "measuring_timeout", "Measuring took too long"
    BROKEN_OFF = "broken_off", "Broken off"  # a measurement that ended through no fault of its function


class Goal(models.TextChoices):
    PREPARE = "prepare", "Prepare"
    TRAIN = "train", "Train"
    HAND_OVER = "hand_over", "Hand over"
    SUSPEND = "suspend", "Suspend"
    STOP = "stop", "Stop"


class AssignmentState(models.TextChoices):
    """`waiting` for another job to leave the GPU, `held`, `clearing` (ordered to leave, not confirmed),
    `released`."""

    WAITING = "waiting", "Waiting"
    HELD = "held", "Held"
    CLEARING = "clearing", "Clearing"
    RELEASED = "released", "Released"


class CurveState(models.TextChoices):
    UNKNOWN = "unknown", "Unknown"
    MEASURING = "measuring", "Measuring"
    READY = "ready", "Ready"
    FAILED = "failed", "Failed"


class EnvironmentState(models.TextChoices):
    """State of the work on an environment, as shown to users."""

    PENDING = "pending", "Pending"
    BUILDING = "building", "Building"
    READY = "ready", "Ready"
    FAILED = "failed", "Failed"
    CANCELLED = "cancelled", "Cancelled"


class OfferState(models.TextChoices):
    OPEN = "open", "Open"
    ACCEPTED = "accepted", "Accepted"
    DECLINED = "declined", "Declined"  # by a person, before it expired
    EXPIRED = "expired", "Expired"
    WITHDRAWN = "withdrawn", "Withdrawn"


class RecoveryKind(models.TextChoices):
    """What was lost: only processes, a server, or a server whose end was announced."""

    SOFTWARE = "software", "Software"
    HARDWARE = "hardware", "Hardware"
    ANNOUNCED = "announced", "Announced"


class RecoveryOutcome(models.TextChoices):
    OPEN = "open", "Under way"
    RECOVERED = "recovered", "Recovered"
    BROKEN_OFF = "broken_off", "Broken off"  # its job ended, or its owner paused it


class ProtectionState(models.TextChoices):
    """How well a job's newest state in memory is protected."""

    FULL = "full", "Full"
    DEGRADED = "degraded", "Degraded"
    NONE = "none", "None"


class StateSource(models.TextChoices):
    """Source of a rank's state, nearest first."""

    OWN_MEMORY = "own_memory", "Memory of its own server"
    PEER_MEMORY = "peer_memory", "A peer's memory"
    DURABLE = "durable", "Durable storage"
    NONE = "none", "Nothing: from the beginning"
