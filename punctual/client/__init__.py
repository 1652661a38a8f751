"""The REST client of Punctual. It needs httpx and pathspec, and no part of the server."""

from punctual.client.client import Client
from punctual.client.configuration import Profile, resolve_profile
from punctual.client.durations import parse_deadline, parse_duration
from punctual.client.jobs import Job
from punctual.client.models import (
    Artifact,
    Checkpoint,
    FunctionVersion,
    Gpu,
    Invitation,
    JobEvent,
    LogChunk,
    Member,
    Metric,
    Offer,
    Project,
    Recovery,
    Requirements,
    Server,
    Share,
    Token,
    User,
    Verdict,
)

__all__ = [
    "Artifact",
    "Checkpoint",
    "Client",
    "FunctionVersion",
    "Gpu",
    "Invitation",
    "Job",
    "JobEvent",
    "LogChunk",
    "Member",
    "Metric",
    "Offer",
    "Profile",
    "Project",
    "Recovery",
    "Requirements",
    "Server",
    "Share",
    "Token",
    "User",
    "Verdict",
    "parse_deadline",
    "parse_duration",
    "resolve_profile",
]
