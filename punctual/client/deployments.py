"""Deployments: models that answer requests."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

from punctual.client.durations import format_duration
from punctual.client.reading import unreadable
from punctual.client.transport import Transport
from punctual.errors import InvalidInputError, NotFoundError, WaitTimeoutError

Document = dict[str, Any]
_POLL_SECONDS = 0.5
#: How long the platform waits for an answer of a server.
_LONGEST_ANSWER_SECONDS = 40.0


class Deployments:
    """Deploy, query, change and delete deployments, as the REST API's documents."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(self, job: str | None = None, **settings: Any) -> Document:
        """Deploy a completed job, or a function.

        Args:
            job: its id. settings: members of the REST API's request, such as `servers={"min": 1, "max": 4}`,
                `latency_target_seconds`, `name`, or `function` and `hyperparameters` instead of a job.

        Raises:
            ConflictError: the job is not completed or left no weights. ApiError: the class has no `predict`.
        """
        body = settings if job is None else {"job": job, **settings}
        return self._document("POST", "deployments/", body)

    def all(self, **filters: Any) -> Iterator[Document]:
        """Return the deployments of your projects, newest first; `filters`: project, name, job, state."""
        params = {name: value for name, value in filters.items() if value is not None}
        return self._transport.pages("deployments/", {"page_size": 50, **params})

    def get(self, deployment_id: str) -> Document:
        """Return one deployment with its replicas and generations."""
        return self._document("GET", _path(deployment_id))

    def find(self, id_or_name: str, *, project: str | None = None) -> str:
        """Return the id of the deployment with this id, or with this name if it has not stopped.

        Raises:
            NotFoundError: there is none. InvalidInputError: several projects have one of that name.
        """
        try:
            return str(self.get(id_or_name)["id"])
        except NotFoundError:
            named = self.all(name=id_or_name, project=project)
            found = [row for row in named if row["state"] != "stopped"]
            if not found:
                raise NotFoundError(
                    f"There is no deployment {id_or_name} among yours.", status=404, code="not_found"
                ) from None
        if len(found) > 1:
            ids = ", ".join(f"{row['id']} of project {row['project']}" for row in found)
            raise InvalidInputError(f"several deployments are called {id_or_name}: {ids}", hint="use the id")
        return str(found[0]["id"])

    def change(self, deployment_id: str, **changes: Any) -> Document:
        """Change settings; another `job` replaces the current one server by server."""
        return self._document("PATCH", _path(deployment_id), changes)

    def rollback(self, deployment_id: str) -> Document:
        """Return to the previous generation."""
        return self._document("POST", _path(deployment_id, "rollback"), {})

    def drain(self, deployment_id: str, server: str) -> Document:
        """Drain one server after a replacement has started."""
        return self._document("POST", _path(deployment_id, "drain"), {"server": server})

    def delete(self, deployment_id: str) -> Document:
        """Drain all servers and end the deployment. Safe to repeat."""
        return self._document("DELETE", _path(deployment_id), None)

    def predict(self, deployment_id: str, inputs: Sequence[Any]) -> list[Any]:
        """Return one output for each input, through the platform. For many requests see `issue_token`."""
        path, body = _path(deployment_id, "predict"), {"inputs": list(inputs)}
        answer = _checked(self._transport.send("POST", path, body, wait_seconds=_LONGEST_ANSWER_SECONDS))
        return list(answer["outputs"])

    def health(self, deployment_id: str) -> Document:
        """Return each server's current health."""
        return self._document("GET", _path(deployment_id, "health"))

    def samples(self, deployment_id: str, *, limit: int = 60) -> Sequence[Document]:
        """Return requests and latencies by period, newest first."""
        path, params = _path(deployment_id, "samples"), {"page_size": min(limit, 200)}
        return list(self._transport.pages(path, params, limit=limit))

    def experts(self, deployment_id: str) -> Document:
        """Return popularity and hosts of the experts, for a deployment whose servers share them."""
        return self._document("GET", _path(deployment_id, "experts"))

    def events(self, deployment_id: str, *, limit: int = 50) -> Sequence[Document]:
        """Return its events, newest first."""
        return list(self._transport.pages(_path(deployment_id, "events"), limit=limit))

    def logs(self, deployment_id: str) -> Sequence[Document]:
        """Return the newest log output of its newest replicas."""
        return list(self._document("GET", _path(deployment_id, "logs"))["results"])

    def issue_token(self, deployment_id: str, name: str) -> Document:
        """Issue a token for requests to the deployment's servers only; `token` is shown only now."""
        path = _path(deployment_id, "tokens")
        return _checked(self._transport.send("POST", path, {"name": name}, repeatable=False))

    def tokens(self, deployment_id: str) -> Sequence[Document]:
        """Return its tokens."""
        return list(self._transport.pages(_path(deployment_id, "tokens")))

    def revoke_token(self, deployment_id: str, token_id: int) -> None:
        """Revoke a token."""
        self._transport.send("DELETE", _path(deployment_id, "tokens", str(token_id)))

    def wait_until_ready(self, deployment_id: str, *, timeout_seconds: float = 300.0) -> Document:
        """Wait until the deployment is `ready`; return it then, or as soon as it cannot become ready.

        Raises:
            WaitTimeoutError: it is still preparing at the end of the time.
        """
        ends_at = time.monotonic() + timeout_seconds
        while True:
            found = self.get(deployment_id)
            if found["state"] not in ("preparing", "degraded"):
                return found
            if time.monotonic() >= ends_at:
                waited = format_duration(timeout_seconds)
                raise WaitTimeoutError(
                    f"deployment {deployment_id} is {found['state']} after {waited}",
                    hint=found["reason"] or None,
                )
            time.sleep(_POLL_SECONDS)

    def _document(self, method: str, path: str, body: Document | None = None) -> Document:
        if method == "GET":
            return _checked(self._transport.get(path))
        return _checked(self._transport.send(method, path, body))


def _path(deployment_id: str, *more: str) -> str:
    return "/".join(("deployments", quote(deployment_id, safe=""), *more)) + "/"


def _checked(answer: Any) -> Document:
    if not isinstance(answer, dict):
        raise unreadable("a deployment")
    return answer
