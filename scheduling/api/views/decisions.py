"""What the planner decided, and why."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from projects.access import require_operator
from projects.api.base import ApiView, StrictSerializer
from projects.api.filters import read_filters
from projects.errors import NotFound
from projects.models import Scope, User
from scheduling.api.job_serializers import EventSerializer
from scheduling.models import Decision
from scheduling.selectors.decisions.decisions import (
    decision_events,
    decision_get,
    decisions_shown_to,
    jobs_to_show,
    sentences,
    summary_shown,
)
from scheduling.selectors.scope.hiding import mask_for


class DecisionSerializer(serializers.ModelSerializer):
    """One answer of the planner; `summary` holds verdicts, changes and risks of jobs that the caller may
    see."""

    kind = serializers.ChoiceField(Decision.Kind.choices)
    trigger = serializers.SerializerMethodField()
    summary = serializers.SerializerMethodField()
    has_snapshot = serializers.BooleanField(help_text="Whether its input is still kept for replay.")

    class Meta:
        model = Decision
        fields = (
            "id", "kind", "policy", "epoch", "planning_version", "decided_at", "trigger", "summary",
            "compute_seconds", "code_version", "has_snapshot",
        )  # fmt: skip

    @extend_schema_field({"type": "object", "additionalProperties": True})
    def get_summary(self, decision: Decision) -> dict[str, Any]:
        return summary_shown(decision.summary, self.context["seen"], self.context["mask"])

    def get_trigger(self, decision: Decision) -> str:
        return str(self.context["mask"](decision.trigger))


class DecisionDetailSerializer(DecisionSerializer):
    """A decision with the events it caused."""

    events = serializers.SerializerMethodField()

    class Meta:
        model = Decision
        fields = (*DecisionSerializer.Meta.fields, "events")

    @extend_schema_field(EventSerializer(many=True))
    def get_events(self, decision: Decision) -> Any:
        return EventSerializer(self.context["events"], many=True, context=self.context).data


def context_for(user: User, decisions: list[Decision], messages: list[str]) -> dict[str, Any]:
    """What of the decisions the person may see."""
    texts = [text for decision in decisions for text in sentences(decision)]
    return {"seen": jobs_to_show(user, decisions), "mask": mask_for(user, [*texts, *messages])}


class DecisionFilterSerializer(StrictSerializer):
    kind = serializers.ChoiceField(Decision.Kind.choices, required=False)
    job = serializers.CharField(max_length=16, required=False)


@extend_schema(tags=["decisions"])
class DecisionsView(ApiView):
    """Decisions about the caller's jobs."""

    queryset = Decision.objects.none()

    @extend_schema(
        operation_id="decision_list",
        summary="List decisions",
        parameters=[DecisionFilterSerializer],
        responses=DecisionSerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        filters = read_filters(request, DecisionFilterSerializer)
        decisions = decisions_shown_to(self.user, kind=filters.get("kind"), job=filters.get("job"))
        found = self.paginate_queryset(decisions) or []
        context = context_for(self.user, found, [])
        return self.get_paginated_response(DecisionSerializer(found, many=True, context=context).data)


@extend_schema(tags=["decisions"])
class DecisionView(ApiView):
    """One decision."""

    queryset = Decision.objects.none()

    @extend_schema(operation_id="decision", summary="Show a decision", responses=DecisionDetailSerializer)
    def get(self, request: Request, decision_id: int) -> Response:
        decision = decision_get(self.user, decision_id)
        events = list(decision_events(self.user, decision))
        context = {
            **context_for(self.user, [decision], [event.message for event in events]),
            "events": events,
        }
        return Response(DecisionDetailSerializer(decision, context=context).data)


@extend_schema(tags=["decisions"])
class SnapshotView(ApiView):
    """A decision's whole input."""

    token_scopes = {"GET": Scope.OPERATE}
    queryset = Decision.objects.none()

    @extend_schema(
        operation_id="decision_snapshot",
        summary="Download a decision's input (operator)",
        description="Compressed, in the format of the replay command. It is deleted after some time.",
        responses={(200, "application/octet-stream"): OpenApiTypes.BINARY},
    )
    def get(self, request: Request, decision_id: int) -> HttpResponse:
        decision = decision_get(self.user, decision_id)
        require_operator(self.user)
        if decision.snapshot is None:
            raise NotFound("The input of this decision is no longer kept.")
        return HttpResponse(
            bytes(decision.snapshot),
            content_type="application/octet-stream",
            headers={"Content-Disposition": f'attachment; filename="decision-{decision_id}.snapshot"'},
        )
