"""The agent API (docs/protocols.md 2): thin views over services, plain JSON."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import structlog
from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.db import InterfaceError, OperationalError
from django.http import FileResponse, HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.http.request import UnreadablePostError
from django.views.decorators.csrf import csrf_exempt
from pydantic import BaseModel, ValidationError

from cluster.models import Agent
from projects.api.parsing import MalformedJson, parse_json
from projects.api.problems import DATABASE_AWAY, RETRY_AFTER_SECONDS
from projects.errors import DomainError
from punctual.protocol.reports import Report
from scheduling.agents.authentication import agent_of
from scheduling.agents.schemas import Enrolment
from scheduling.selectors.agents.desired_state import desired_state
from scheduling.selectors.agents.own_work import bundle_to_run, needs_environment
from scheduling.services.agents.enrolment import agent_enrol
from scheduling.services.agents.reports import Fenced, apply_report, renew_lease
from scheduling.services.long_work.environments import open_environment

log = structlog.get_logger(__name__)

AgentView = Callable[..., HttpResponseBase]
Model = TypeVar("Model", bound=BaseModel)


def problem(status: int, code: str, title: str, detail: str, **extra: Any) -> JsonResponse:
    """An RFC 9457 problem document."""
    body = {
        "type": f"urn:punctual:{code}",
        "title": title,
        "status": status,
        "detail": detail,
        "code": code,
        **extra,
    }
    return JsonResponse(body, status=status, content_type="application/problem+json")


def for_agents(view: AgentView) -> AgentView:
    """Let only enrolled agents in, and turn domain errors into problem documents."""

    @functools.wraps(view)
    def wrapped(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        try:
            agent = agent_of(request)
            if agent is None:
                return problem(
                    401,
                    "unknown_agent",
                    "Unknown agent",
                    "The credential is unknown or revoked; enrol again.",
                )
            return view(request, agent, *args, **kwargs)
        except _Malformed as error:
            return error.response
        except DomainError as error:
            return problem(error.status, error.code, error.title, error.detail, **error.extra)
        except (OperationalError, InterfaceError) as error:
            return _database_away(error)

    return csrf_exempt(wrapped)


def _database_away(error: Exception) -> JsonResponse:
    """Return 503 while PostgreSQL restarts; agents retry."""
    log.error("database_unavailable", error=str(error))
    answer = problem(503, "unavailable", "Unavailable", DATABASE_AWAY)
    answer["Retry-After"] = RETRY_AFTER_SECONDS
    return answer


def answers_only(method: str) -> Callable[[AgentView], AgentView]:
    """Answer any other method with a problem document."""

    def decorated(view: AgentView) -> AgentView:
        @functools.wraps(view)
        def wrapped(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            if request.method == method or (request.method, method) == ("HEAD", "GET"):
                return view(request, *args, **kwargs)
            detail = f"{request.path} answers {method} only."
            refused = problem(405, "method_not_allowed", "Method not allowed", detail)
            refused["Allow"] = method
            return refused

        return wrapped

    return decorated


@csrf_exempt
@answers_only("POST")
def enrol(request: HttpRequest) -> HttpResponse:
    """Spend a one-time token, get a credential. An agent that is enrolled already may show its present
    one."""
    try:
        body = _parse(request, Enrolment)
        enrolled = agent_enrol(body.model_dump(), agent_of(request))
    except _Malformed as error:
        return error.response
    except DomainError as error:
        return problem(error.status, error.code, error.title, error.detail, errors=error.errors)
    except (OperationalError, InterfaceError) as error:
        return _database_away(error)
    cluster = enrolled.cluster
    return JsonResponse(
        {
            "server_id": enrolled.server.pk,
            "credential": enrolled.credential,
            "lease_seconds": cluster.fence_seconds,
            "suspect_seconds": cluster.suspect_seconds,
            "report_seconds": cluster.report_seconds,
        },
        status=201,
    )


@answers_only("POST")
@for_agents
def report(request: HttpRequest, agent: Agent) -> HttpResponse:
    """Take a heartbeat with everything in it; renew the lease, whatever else the report holds."""
    try:
        try:
            body = _parse(request, Report)
        except _Malformed as error:
            # The agent is alive; what it cannot say right is no reason to give its work away.
            error.extend(lease_seconds=renew_lease(agent))
            raise
        answer = apply_report(agent, body.model_dump())
    except Fenced:
        return problem(
            409,
            "fenced",
            "Fenced",
            "This server's work was given away; stop every worker and report an empty list.",
        )
    return JsonResponse(dataclasses.asdict(answer))


@answers_only("GET")
@for_agents
def desired(request: HttpRequest, agent: Agent) -> HttpResponse:
    """What should be true on this server."""
    if agent.fenced_at is not None:
        return problem(409, "fenced", "Fenced", "Report an empty list of workers first.")
    return JsonResponse(desired_state(agent.server_id))


@answers_only("GET")
@for_agents
def function_bundle(request: HttpRequest, agent: Agent, digest: str) -> HttpResponse:
    """The bytes of a function that this server was given to run."""
    content = bundle_to_run(agent.server_id, digest)
    if content is None:
        return problem(404, "not_found", "Not found", "No work on this server needs such a function.")
    return HttpResponse(content, content_type="application/octet-stream")


@answers_only("GET")
@for_agents
def environment(request: HttpRequest, agent: Agent, digest: str) -> HttpResponseBase:
    """The archive of an environment that this server needs."""
    archive = open_environment(digest) if needs_environment(agent.server_id, digest) else None
    if archive is None:
        return problem(
            404, "not_found", "Not found", "This environment is not built (yet), or no work here needs it."
        )
    return FileResponse(archive, content_type="application/gzip")


class _Malformed(Exception):
    def __init__(self, status: int, code: str, detail: str, **extra: Any) -> None:
        super().__init__(detail)
        self._problem: dict[str, Any] = {"status": status, "code": code, "detail": detail, **extra}

    def extend(self, **extra: Any) -> None:
        """Say more in the problem document."""
        self._problem |= extra

    @property
    def response(self) -> HttpResponse:
        return problem(title="Invalid request", **self._problem)


def _parse(request: HttpRequest, model: type[Model]) -> Model:
    try:
        return model.model_validate(parse_json(request.body, parse_int=_whole_number))
    except RequestDataTooBig as error:
        raise _Malformed(
            413, "too_large", f"A body has at most {settings.DATA_UPLOAD_MAX_MEMORY_SIZE} bytes."
        ) from error
    except UnreadablePostError as error:
        raise _Malformed(400, "malformed", "The body ended too early.") from error
    except ValidationError as error:
        errors = {
            ".".join(map(str, item["loc"])): [item["msg"]]
            for item in error.errors(include_url=False, include_input=False, include_context=False)[:20]
        }
        raise _Malformed(400, "invalid", "The body is malformed.", errors=errors) from error
    except MalformedJson as error:
        raise _Malformed(400, "invalid", f"The body is not JSON that is taken: {error}.") from error


def _whole_number(digits: str) -> int | float:
    """A number of thousands of digits is none of ours; it must spoil its own item only, not the whole
    body."""
    return int(digits) if len(digits) < 40 else float(digits)
