"""Queries of the event streams: the caller's identity, and missed messages."""

from __future__ import annotations

from cluster.models import Agent, Server
from projects.models import Scope, User, token_digest
from projects.selectors import token_bearer
from scheduling.models import Job, LogChunk
from scheduling.selectors.scope.visibility import visible_jobs


def user_of_token(secret: str) -> User | None:
    """Return the person whose token this is, within its limits; None if it is invalid or lacks the scope
    `read`."""
    token = token_bearer(secret)
    return token.user if token is not None and Scope.READ in token.scopes else None


def agent_of_credential(credential: str) -> Agent | None:
    """Return the agent with this credential, or None if it is unknown or revoked."""
    agents = Agent.objects.select_related("server").filter(revoked_at__isnull=True)
    return agents.filter(credential_digest=token_digest(credential)).first()


def desired_version(server_id: int) -> int:
    """Return the version of the desired state for a server's agent."""
    return Server.objects.values_list("desired_version", flat=True).get(pk=server_id)


def job_is_visible(user: User, job_id: str) -> bool:
    """Return whether the person may follow the job."""
    return visible_jobs(user).filter(pk=job_id).exists()


def job_state(job_id: str) -> str | None:
    """Return the job's present state, or None if it no longer exists."""
    return Job.objects.filter(pk=job_id).values_list("state", flat=True).first()


def log_chunks_after(job_id: str, chunk_id: int, limit: int, rank: int | None = None) -> list[LogChunk]:
    """Return the pieces of a job's log after a known one, in order."""
    chunks = LogChunk.objects.filter(job_id=job_id, id__gt=chunk_id).order_by("id")
    return list(chunks.filter(rank=rank)[:limit] if rank is not None else chunks[:limit])
