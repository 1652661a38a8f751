"""Forwards requests through the platform to a replica.

The answer comes from user code: only known fields are used, within bounds, and no redirect is followed. If a
replica does not accept a request, the next one gets it, so that no request fails while replicas are replaced.
`predict` changes nothing, so a second call does no harm.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import httpx
import structlog

from cluster.choices import ServerState
from deployments.choices import ANSWERING_STATES, DeploymentState, ReplicaState
from deployments.models import Deployment, Replica
from projects.errors import Conflict, DomainError, InvalidRequest, TooLarge, Unavailable
from punctual.protocol.limits import SERVING_ANSWER_SECONDS, SERVING_BODY_BYTES, clean_text

log = structlog.get_logger(__name__)

#: Limit of one web process. Each prediction occupies a thread; clients that need more should call the
#: replicas directly.
PREDICTIONS_AT_ONCE = 3
CONNECT_SECONDS = 2.0
#: A replica itself answers within `SERVING_ANSWER_SECONDS`.
READ_SECONDS = SERVING_ANSWER_SECONDS + 5.0
MOST_ANSWER_BYTES = 8 * 1024 * 1024
MOST_DETAIL_CHARACTERS = 500
_slots = threading.BoundedSemaphore(PREDICTIONS_AT_ONCE)


class FunctionFailed(DomainError):
    """502: the function, not the platform, failed."""

    status = 502
    code = "function_error"
    title = "The function failed"


class TookTooLong(DomainError):
    """504: the function did not answer in time."""

    status = 504
    code = "timeout"
    title = "No answer in time"


def predict(deployment: Deployment, inputs: Sequence[Any]) -> dict[str, Any]:
    """Return the outputs for these inputs, from one of the deployment's replicas.

    Raises:
        TooLarge: the inputs take too many bytes. InvalidRequest: the function refuses an input.
        FunctionFailed: the function failed. TookTooLong: it did not answer in time.
        Conflict: the deployment has stopped. Unavailable: no replica takes the request now.
    """
    if deployment.state == DeploymentState.STOPPED:
        raise Conflict(f"Deployment {deployment.pk} has stopped; ask another one.")
    body = json.dumps({"inputs": list(inputs)}).encode()
    if len(body) > SERVING_BODY_BYTES:
        raise TooLarge(f"The inputs take {len(body)} bytes; a request has at most {SERVING_BODY_BYTES}.")
    with _slot():
        for replica in _answering_replicas(deployment):
            answer = _ask(replica, body)
            if answer is not None:
                return answer
    raise Unavailable(f"No server of deployment {deployment.pk} takes the request now; try again soon.")


def replica_health(deployment: Deployment) -> list[dict[str, Any]]:
    """Return the state that each replica reports now: `serving`, `draining`, or None without an answer."""
    with _slot():
        found = [
            {"server": replica.server.name, "state": _ask_state(replica)}
            for replica in _answering_replicas(deployment)
        ]
    return sorted(found, key=lambda health: str(health["server"]))


@contextmanager
def _slot() -> Iterator[None]:
    if not _slots.acquire(blocking=False):
        raise Unavailable(
            "Too many predictions are under way; try again, or ask the servers themselves with a token of "
            "the deployment."
        )
    try:
        yield
    finally:
        _slots.release()


def _answering_replicas(deployment: Deployment) -> list[Replica]:
    """Return replicas that may answer, in random order; serving ones on servers that are up come first."""
    replicas = list(
        deployment.replicas.filter(state__in=ANSWERING_STATES)
        .exclude(server__state=ServerState.DOWN)
        .select_related("server", "rollout")
        .defer("log", "counts", "counted")
    )
    random.shuffle(replicas)
    replicas.sort(
        key=lambda replica: (
            replica.state != ReplicaState.SERVING,
            replica.server.state != ServerState.UP,
        )
    )
    return replicas


@cache
def _client() -> httpx.Client:
    timeout = httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS)
    # Connect to servers at their declared addresses, without the environment's proxies.
    return httpx.Client(timeout=timeout, follow_redirects=False, trust_env=False)


def _ask(replica: Replica, body: bytes) -> dict[str, Any] | None:
    """Return one replica's answer; None if another replica should be tried."""
    try:
        status, answer = _send("POST", replica, "/predict", body)
    except httpx.ReadTimeout as error:
        raise TookTooLong(f"The server did not answer within {READ_SECONDS:g} s.") from error
    except (httpx.HTTPError, ValueError) as error:
        log.info("a replica did not answer", replica=replica.key, error=str(error))
        return None
    if status == httpx.codes.OK:
        outputs = answer.get("outputs")
        if not isinstance(outputs, list):
            raise FunctionFailed("The server's answer holds no list of outputs.")
        return {"outputs": outputs, "generation": replica.rollout.number, "server": replica.server.name}
    if status in (httpx.codes.SERVICE_UNAVAILABLE, httpx.codes.UNAUTHORIZED):
        # Its queue is full, it is ending, or it does not have its secret yet.
        return None
    detail = clean_text(str(answer.get("detail") or "The server gave no reason."), MOST_DETAIL_CHARACTERS)
    if status == httpx.codes.GATEWAY_TIMEOUT:
        raise TookTooLong(detail)
    if 400 <= status < 500:
        raise InvalidRequest(detail, errors={"inputs": [detail]})
    raise FunctionFailed(detail)


def _ask_state(replica: Replica) -> str | None:
    try:
        status, answer = _send("GET", replica, "/health")
    except (httpx.HTTPError, ValueError):
        return None
    state = answer.get("state")
    return state if status == httpx.codes.OK and state in ("serving", "draining") else None


def _send(
    method: str, replica: Replica, path: str, body: bytes | None = None
) -> tuple[int, Mapping[str, Any]]:
    """Return status and JSON object.

    Raises httpx.HTTPError, and ValueError for an answer that is too large or no JSON object.
    """
    headers = {"Authorization": f"Bearer {replica.secret}", "Content-Type": "application/json"}
    with _client().stream(method, f"{replica.address}{path}", headers=headers, content=body) as response:
        content = bytearray()
        for piece in response.iter_bytes():
            content += piece
            if len(content) > MOST_ANSWER_BYTES:
                raise ValueError(f"an answer of more than {MOST_ANSWER_BYTES} bytes")
        try:
            answer = json.loads(content)
        except RecursionError as error:
            raise ValueError("an answer that is nested too deeply") from error
    if not isinstance(answer, dict):
        raise ValueError("an answer that is no JSON object")
    return response.status_code, answer
