"""What the OpenAPI document says of every operation: problems, idempotency, strict bodies."""

from __future__ import annotations

from typing import Any

from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse
from rest_framework.permissions import AllowAny

from punctual.protocol.problems import MEDIA_TYPE

PROBLEMS = {
    400: "Invalid request; `errors` holds the messages by field.",
    401: "The token is missing, unknown, expired or revoked.",
    403: "The caller sees the object and lacks the right to do this.",
    404: "The object does not exist, or the caller may not see it.",
    409: "The object's present state forbids it, or a request with this `Idempotency-Key` is running.",
    413: "The body is too large.",
    415: "The content type is not supported.",
    429: "Too many requests, or a limit of the project is reached.",
    503: "Try again after `Retry-After` seconds.",
}


class PunctualAutoSchema(AutoSchema):
    """Adds what follows from an operation's kind, so that no view can forget it."""

    def get_description(self) -> str:  # type: ignore[override]
        """The view's own words, and the scope that a token needs."""
        words: str = super().get_description()
        by_method = getattr(self.view, "scopes_by_method", None)
        scope = by_method().get(self.method) if by_method else None
        return f"{words}\n\nA token needs the scope `{scope.value}`.".strip() if scope else words

    def get_override_parameters(self) -> list[Any]:
        if self.method != "POST" or not getattr(self.view, "remembers_answers", False):
            return []
        return [
            OpenApiParameter(
                "Idempotency-Key",
                {"type": "string", "pattern": r"^[\x21-\x7e]{1,200}$"},
                OpenApiParameter.HEADER,
                description="Makes a repeated request harmless: within 24 hours the first answer is given "
                "again, with `Idempotency-Replayed: true`.",
            )
        ]

    def _get_response_bodies(self, direction: Any = "response") -> dict[str, Any]:
        from projects.api.serializers import ProblemSerializer

        bodies = super()._get_response_bodies(direction)
        for status in self._problem_statuses():
            answer = OpenApiResponse(ProblemSerializer, description=PROBLEMS[status])
            bodies.setdefault(
                str(status), self._get_response_for_code(answer, str(status), [MEDIA_TYPE], direction)
            )
        return bodies

    def _problem_statuses(self) -> list[int]:
        anonymous = AllowAny in getattr(self.view, "permission_classes", ())
        statuses = {503}
        if not anonymous or self.method == "POST":
            statuses |= {401}
        if not anonymous:
            statuses |= {403}
        if "{" in self.path:
            statuses |= {404}
        if self.method != "GET" or self._get_parameters_in("query"):
            statuses |= {400}
        if self.method != "GET":
            statuses |= {409}
        if self.method in {"POST", "PATCH", "PUT"}:
            statuses |= {413, 415}
        if self.method == "POST":
            statuses |= {429}
        return sorted(statuses)

    def _get_parameters_in(self, location: str) -> list[dict[str, Any]]:
        return [parameter for parameter in self._get_parameters() if parameter["in"] == location]


def refuse_unknown_fields(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Say in the document what :class:`projects.api.base.StrictSerializer` does."""
    for path in result["paths"].values():
        for operation in path.values():
            for content in operation.get("requestBody", {}).get("content", {}).values():
                name = content["schema"].get("$ref", "").rpartition("/")[2]
                if name:
                    _close(result["components"]["schemas"], name)
    return result


def _close(schemas: dict[str, Any], name: str) -> None:
    schema = schemas[name]
    if schema.get("type") != "object" or "properties" not in schema:
        return
    schema["additionalProperties"] = False
    for inner in schema["properties"].values():
        for reference in [inner, inner.get("items", {}), *inner.get("oneOf", []), *inner.get("allOf", [])]:
            inner_name = reference.get("$ref", "").rpartition("/")[2]
            if inner_name and "additionalProperties" not in schemas[inner_name]:
                _close(schemas, inner_name)
