"""Functions, curves, jobs, generations, decisions, and what was observed of them."""

from scheduling.models.communication import GradientPlan, GradientProfile
from scheduling.models.decisions import Decision, Offer, OutboxMessage, PlannerPass
from scheduling.models.functions import (
    Bundle,
    CurveLevel,
    Environment,
    Function,
    FunctionVersion,
    ScalingCurve,
)
from scheduling.models.generations import Assignment, Generation, Worker
from scheduling.models.incidents import Incident
from scheduling.models.jobs import Job, new_job_id
from scheduling.models.records import (
    AppliedEvent,
    Artifact,
    Checkpoint,
    JobEvent,
    JobExperts,
    JobMetric,
    LogChunk,
    StateShard,
)
from scheduling.models.recoveries import JobProtection, Recovery

__all__ = [
    "AppliedEvent",
    "Artifact",
    "Assignment",
    "Bundle",
    "Checkpoint",
    "CurveLevel",
    "Decision",
    "Environment",
    "Function",
    "FunctionVersion",
    "Generation",
    "GradientPlan",
    "GradientProfile",
    "Incident",
    "Job",
    "JobEvent",
    "JobExperts",
    "JobMetric",
    "JobProtection",
    "LogChunk",
    "Offer",
    "OutboxMessage",
    "PlannerPass",
    "Recovery",
    "ScalingCurve",
    "StateShard",
    "Worker",
    "new_job_id",
]
