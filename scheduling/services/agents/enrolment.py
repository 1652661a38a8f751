"""Enrolment of agents: one-time tokens, credentials, revocation."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from cluster.choices import LendingState, ServerState, Whitelist
from cluster.models import Agent, Cluster, EnrolmentToken, Server
from projects.errors import DomainError, InvalidRequest
from projects.models import User, token_digest
from scheduling.services.agents.inventory import inventory_update
from scheduling.services.rows.records import lock_cluster, planning_fact_changed
from scheduling.services.rows.wakeups import wake

TOKEN_VALID_FOR = timedelta(hours=24)


class RefusedToken(DomainError):
    """401: the enrolment token is unknown, used or expired."""

    status = 401
    code = "enrolment_refused"
    title = "Enrolment refused"


@dataclass(frozen=True)
class Enrolled:
    """An enrolled agent. The credential is shown once and stored as a digest."""

    server: Server
    #: The agent's credential, returned only once.
    credential: str
    cluster: Cluster


def cluster_get_or_create(name: str = "default") -> Cluster:
    """Return the cluster; create it with the installation's defaults if it does not exist."""
    return Cluster.objects.get_or_create(name=name, defaults=settings.CLUSTER_DEFAULTS)[0]


def enrolment_token_create(
    *,
    created_by: User | None,
    server_name: str = "",
    cluster: Cluster | None = None,
    inference_cluster_id: int | None = None,
) -> str:
    """Return a token that lets one agent enrol once within a day. It is stored as a digest only.

    With ``inference_cluster_id``, the agent's server belongs to that inference cluster, which lends to
    ``cluster``.
    """
    token = f"enrol_{secrets.token_urlsafe(32)}"
    EnrolmentToken.objects.create(
        cluster=cluster or cluster_get_or_create(),
        inference_cluster_id=inference_cluster_id,
        digest=token_digest(token),
        server_name=server_name,
        created_by=created_by,
        expires_at=timezone.now() + TOKEN_VALID_FOR,
    )
    return token


@transaction.atomic
def agent_enrol(request: Mapping[str, Any], present: Agent | None = None) -> Enrolled:
    """Use up a token to create the server of that name, or to take it over.

    Taking over an existing server needs a token made for that name, or the credential of the server's own
    agent (``present``). Otherwise the holder of any token could steal the server's jobs and state.

    Raises:
        RefusedToken: the token is invalid, used or expired, or does not allow a server of this name.
        InvalidRequest: the port range or the inventory is wrong.
    """
    now = timezone.now()
    token = (
        EnrolmentToken.objects.select_for_update().filter(digest=token_digest(str(request["token"]))).first()
    )
    if token is None or token.used_at is not None or token.expires_at < now:
        raise RefusedToken(
            "The enrolment token is unknown, used already or expired; ask an operator for a new one."
        )
    name = str(request["name"])
    if token.server_name and token.server_name != name:
        raise RefusedToken(f"This token enrols server {token.server_name}, not {name}.")
    first, last = request["port_range"]
    if not 1024 <= first < last <= 65535:
        raise InvalidRequest(
            "The port range is wrong.", errors={"port_range": ["two ports between 1024 and 65535, ascending"]}
        )
    cluster = lock_cluster(token.cluster_id)
    known = Server.objects.filter(cluster=cluster, name=name).first()
    alike = Server.objects.filter(cluster=cluster, name__iexact=name).exclude(name=name).first()
    if alike is not None:
        raise RefusedToken(
            f"There is a server {alike.name} already, and {name} differs from it in upper and lower case "
            "alone. Take another name."
        )
    if known is not None and not token.server_name and (present is None or present.server_id != known.pk):
        raise RefusedToken(
            f"There is a server {name} already, and this token enrols new ones only. Take another name, or "
            f"ask an operator for a token for {name}."
        )
    home = _home(token, known, name)
    credential = f"agent_{secrets.token_urlsafe(32)}"
    server, _ = Server.objects.update_or_create(
        cluster=cluster,
        name=name,
        defaults={
            **home,
            "address": request["address"],
            "port_first": first,
            "port_last": last,
            "rack": str(request.get("rack", ""))[:100],
            "power_domain": str(request.get("power_domain", ""))[:100],
            "available_until": _available_until(request, known, now),
            "state": ServerState.UP,
            "state_changed_at": now,
        },
    )
    Agent.objects.update_or_create(
        server=server,
        defaults={
            "credential_digest": token_digest(credential),
            "version": str(request.get("agent_version", ""))[:40],
            "enrolled_at": now,
            "revoked_at": None,
            "last_report_at": None,
            "boot_id": "",
            "sequence": 0,
            "desired_version_seen": 0,
        },
    )
    inventory_update(server, request["inventory"])
    token.used_at = now
    token.save(update_fields=["used_at"])
    planning_fact_changed(cluster)
    wake("plan", trigger=f"server {name} enrolled")
    return Enrolled(server, credential, cluster)


def _available_until(request: Mapping[str, Any], known: Server | None, now: datetime) -> datetime | None:
    """Return when the server leaves: as its agent says, else the operator's time if it is still to come."""
    seconds = request.get("available_seconds")
    if seconds is not None:
        return now + timedelta(seconds=seconds)
    told = None if known is None else known.available_until
    return told if told is not None and told > now else None


def _home(token: EnrolmentToken, known: Server | None, name: str) -> dict[str, Any]:
    """Return the fields that say where a new server belongs. Empty for a known server, whose lending state
    stays as it is.

    Raises:
        RefusedToken: the server of that name belongs to another cluster.
    """
    if known is not None:
        if known.inference_cluster_id != token.inference_cluster_id:
            raise RefusedToken(f"Server {name} belongs to another cluster than this token is for.")
        return {}
    if token.inference_cluster_id is None:
        return {}
    return {
        "inference_cluster_id": token.inference_cluster_id,
        "lending_state": LendingState.INFERENCE,
        "whitelist": Whitelist.INFERENCE,
    }


@transaction.atomic
def agent_revoke(*, agent: Agent) -> None:
    """Refuse the agent from now on: its lease expires, its workers end and its server is fenced."""
    Agent.objects.filter(pk=agent.pk).update(revoked_at=timezone.now())
