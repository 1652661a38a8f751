"""Reading a submission: from JSON to the request that services take."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from communication.library.codec_names import FAITHFUL, LOSSY
from projects.access import require
from projects.api import fields
from projects.api.base import StrictSerializer
from projects.errors import InvalidRequest
from projects.models import Project, Role, User
from projects.selectors import find_project, memberships_to_submit, own_membership
from scheduling.api import job_fields
from scheduling.choices import Lossy, ServiceClass
from scheduling.models import Job
from scheduling.moments import LONGEST_DEADLINE
from scheduling.selectors.jobs.functions import resolve_function
from scheduling.services.requests.jobs import JobRequest, request_of


class DeadlineMixin(serializers.Serializer):
    """`deadline_at` or `deadline_seconds` from receipt."""

    deadline_at = fields.Moment(required=False, allow_null=True, help_text="RFC 3339 with an offset.")
    deadline_seconds = fields.Number(
        required=False,
        allow_null=True,
        min_value=0.001,
        max_value=LONGEST_DEADLINE.total_seconds(),
        help_text="Seconds after this request is received.",
    )
    service_class = serializers.ChoiceField(
        ServiceClass.choices,
        required=False,
        error_messages={
            "invalid_choice": f'"{{input}}" is no class; known: {", ".join(ServiceClass.values)}.'
        },
        help_text="By default `slo` with a deadline and `best_effort` without one.",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        now = timezone.now()
        if attrs.get("deadline_at") is not None and attrs.get("deadline_seconds") is not None:
            raise ValidationError("Give deadline_at or deadline_seconds, and not both.")
        if attrs.get("deadline_seconds") is not None:
            attrs["deadline_at"] = now + timedelta(seconds=attrs["deadline_seconds"])
        deadline = attrs.get("deadline_at")
        if deadline is not None and deadline <= now:
            raise ValidationError({"deadline_at": ["The deadline has passed; give one in the future."]})
        if deadline is not None and deadline > now + LONGEST_DEADLINE:
            raise ValidationError({"deadline_at": ["The deadline is more than ten years away."]})
        attrs["service_class"] = _service_class(attrs.get("service_class"), deadline)
        return attrs


def _service_class(named: str | None, deadline: datetime | None) -> ServiceClass:
    if named is None:
        return ServiceClass.BEST_EFFORT if deadline is None else ServiceClass.SLO
    if deadline is None and named != ServiceClass.BEST_EFFORT:
        raise ValidationError(
            {
                "service_class": [
                    f"A job of class {named} needs deadline_at or deadline_seconds; or take best_effort."
                ]
            }
        )
    if deadline is not None and named == ServiceClass.BEST_EFFORT:
        raise ValidationError(
            {"service_class": ["A best_effort job has no deadline; take soft for a deadline that is a wish."]}
        )
    return ServiceClass(named)


class JobRequestSerializer(DeadlineMixin, StrictSerializer):
    """The work and its deadline. It has no number of GPUs: the platform chooses that."""

    function = job_fields.FunctionReference()
    project = fields.Text(max_length=64, required=False, help_text="Members of only one project may omit it.")
    name = fields.Name(max_length=200, required=False, help_text="By default the function's name.")
    labels = job_fields.Labels(default=dict)
    hyperparameters = job_fields.Hyperparameters()
    termination = job_fields.TerminationSerializer()
    data = job_fields.DataSourceSerializer(  # type: ignore[assignment, call-arg]
        many=True, default=list, max_length=job_fields.MAXIMUM_DATA_SOURCES
    )
    lossy = serializers.ChoiceField(
        Lossy.choices,
        default=Lossy.REFUSED,
        error_messages={"invalid_choice": '"{input}" is neither refused nor allowed.'},
        help_text="Whether lossy codecs may compress gradients where that is faster.",
    )
    codecs = serializers.ListField(
        child=serializers.ChoiceField(
            [(name, name) for name in LOSSY],
            error_messages={"invalid_choice": f'"{{input}}" is no lossy codec; known: {", ".join(LOSSY)}.'},
        ),
        max_length=len(LOSSY),
        default=list,
        help_text=f"The only lossy codecs allowed; empty: {', '.join(FAITHFUL)}.",
    )
    protection = job_fields.ProtectionSerializer(default=dict)
    checkpoint_seconds = fields.Number(min_value=1, max_value=86_400, default=60.0)
    seed = fields.Integer(min_value=0, max_value=job_fields.LARGEST_INTEGER, default=0)

    def to_internal_value(self, data: Any) -> Any:
        counts = dict(job_fields.gpu_counts_in(data))
        if counts:
            raise ValidationError({path: [message] for path, message in counts.items()})
        return super().to_internal_value(data)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if attrs.get("codecs") and attrs.get("lossy", Lossy.ALLOWED) != Lossy.ALLOWED:
            raise ValidationError({"codecs": ["Codecs are for jobs with lossy: allowed; say that too."]})
        return super().validate(attrs)

    def validate_codecs(self, codecs: list[str]) -> list[str]:
        return sorted(set(codecs))

    def validate_data(self, data: list[dict[str, Any]]) -> list[dict[str, Any]]:
        names = [item["name"] for item in data]
        if len(set(names)) < len(names):
            raise ValidationError("Names of data must differ.")
        return data


class WhatIfRequestSerializer(JobRequestSerializer):
    """The work, its deadline, and the links to assume."""

    link_bytes_per_second = fields.Number(
        required=False,
        allow_null=True,
        min_value=1e3,
        max_value=1e15,
        help_text=(
            "Bytes per second between servers to assume in place of the links' rate. The function's "
            "speed is then predicted, and the reason says so."
        ),
    )


class JobOverridesSerializer(JobRequestSerializer):
    """Fields that differ from the cloned job; hyperparameters, termination and protection
    are merged."""

    function = job_fields.FunctionReference(required=False)
    hyperparameters = serializers.DictField(required=False)  # type: ignore[assignment]
    termination = serializers.DictField(required=False)  # type: ignore[assignment]
    protection = job_fields.ProtectionSerializer(required=False)


class DeadlineChangeSerializer(DeadlineMixin, StrictSerializer):
    """The new deadline; `deadline_at` null gives up the deadline."""

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if "deadline_at" not in attrs and "deadline_seconds" not in attrs:
            raise ValidationError(
                "Give deadline_at or deadline_seconds; deadline_at null takes the deadline away."
            )
        return super().validate(attrs)


def request_from(user: User, body: Mapping[str, Any]) -> tuple[Project, JobRequest]:
    """The project and the request that a validated body names.

    Raises:
        InvalidRequest: no such project or function.
        NotAllowed: the person may only look at the project.
    """
    project = project_to_submit_to(user, body.get("project"))
    version = resolve_function(project, body["function"])
    return project, JobRequest(
        function_version=version,
        name=body.get("name") or version.function.name,
        labels=body["labels"],
        hyperparameters=body["hyperparameters"],
        max_iterations=body["termination"]["max_iterations"],
        target=body["termination"]["target"],
        service_class=body["service_class"],
        deadline_at=body.get("deadline_at"),
        data=[dict(item) for item in body["data"]],
        checkpoint_seconds=body["checkpoint_seconds"],
        seed=body["seed"],
        lossy=body["lossy"],
        codecs=tuple(body["codecs"]),
        protection=dict(body["protection"]),
    )


def project_to_submit_to(user: User, name: str | None) -> Project:
    """Return the project of that name; without a name, the only one that the person may submit to.

    Raises:
        InvalidRequest: there is none, or there are several. NotAllowed: the person may only look at it.
    """
    if name is not None:
        mine = own_membership(user, name)
        # An operator needs no membership.
        project = mine.project if mine else find_project(user, name)
        if project is None:
            raise InvalidRequest(
                f"There is no project {name} among yours.", errors={"project": ["No such project."]}
            )
        if not user.operates():
            require(Role(mine.role) if mine else None, project, Role.MEMBER)
        return project
    memberships = list(memberships_to_submit(user)[:21])
    if len(memberships) != 1:
        names = ", ".join(sorted(membership.project.name for membership in memberships[:20]))
        message = f"Say which project: {names}." if names else "You may submit to no project yet; create one."
        raise InvalidRequest(message, errors={"project": [message]})
    return memberships[0].project


def cloned_body(job: Job, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The submission that made the job with the overrides in place; a relative deadline stays unless
    overridden."""
    old = request_of(job)
    body: dict[str, Any] = {
        "function": f"{job.function_version.function.name}@{job.function_version.number}",
        "project": job.project.name,
        "name": old.name,
        "labels": dict(old.labels),
        "hyperparameters": dict(old.hyperparameters),
        "termination": {"max_iterations": old.max_iterations, "target": old.target},
        "data": list(old.data),
        "checkpoint_seconds": old.checkpoint_seconds,
        "seed": old.seed,
        "lossy": old.lossy,
        "codecs": list(old.codecs),
        "protection": dict(old.protection),
    }
    says_deadline = "deadline_at" in overrides or "deadline_seconds" in overrides
    has_deadline = overrides.get("deadline_at") is not None or overrides.get("deadline_seconds") is not None
    if says_deadline and has_deadline and old.service_class == ServiceClass.SOFT:
        body["service_class"] = old.service_class
    elif (
        not says_deadline and old.deadline_at is not None and overrides.get("service_class") != "best_effort"
    ):
        body["deadline_seconds"] = (old.deadline_at - job.submitted_at).total_seconds()
        body["service_class"] = old.service_class
    if overrides.get("lossy") == Lossy.REFUSED:
        body["codecs"] = []
    for name, value in overrides.items():
        merged = name in ("hyperparameters", "termination", "protection") and isinstance(value, Mapping)
        body[name] = {**body[name], **value} if merged else value
    return body
