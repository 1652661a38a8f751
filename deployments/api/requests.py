"""Bodies of requests about deployments, and what services make of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from deployments.choices import ExpertHosting
from deployments.models import Deployment
from deployments.services.deployments import MAX_BATCH, MAX_WAIT_SECONDS, DeploymentRequest
from deployments.services.rollouts import Served
from deployments.services.servable import function_servable, job_servable
from projects.api import fields
from projects.api.base import StrictSerializer
from projects.api.path_patterns import JOB_ID
from projects.errors import InvalidRequest, NotFound
from projects.models import Project, User
from punctual.protocol.limits import LARGEST_COUNT, LONGEST_SERVING_WAIT_SECONDS, SERVING_INPUTS
from scheduling.api.job_fields import FunctionReference, Hyperparameters
from scheduling.api.job_requests import project_to_submit_to
from scheduling.models import Job
from scheduling.selectors.jobs.functions import resolve_function
from scheduling.selectors.jobs.jobs import job_to_steer

MOST_SERVERS = 64
SHORTEST_TARGET_SECONDS = 0.001
LONGEST_TARGET_SECONDS = 600.0


def _count(**more: Any) -> fields.Integer:
    return fields.Integer(min_value=1, max_value=MOST_SERVERS, required=False, **more)


class ServersSerializer(StrictSerializer):
    """Bounds of the number of servers. `wanted`: the number now; the load changes it within the bounds."""

    min = _count()
    max = _count()
    wanted = _count()

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        ordered = [attrs[name] for name in ("min", "wanted", "max") if name in attrs]
        if ordered != sorted(ordered):
            raise ValidationError("The numbers must satisfy min <= wanted <= max.")
        return attrs


class _SettingsSerializer(StrictSerializer):
    servers = ServersSerializer(required=False)
    latency_target_seconds = fields.Number(
        min_value=SHORTEST_TARGET_SECONDS,
        max_value=LONGEST_TARGET_SECONDS,
        required=False,
        allow_null=True,
        help_text="Target for the 95th percentile. Servers are added before it would be exceeded.",
    )
    max_batch = fields.Integer(
        min_value=1,
        max_value=SERVING_INPUTS,
        required=False,
        help_text=f"Inputs of one call of `predict`; {MAX_BATCH} unless given.",
    )
    max_wait_seconds = fields.Number(
        min_value=0.0,
        max_value=LONGEST_SERVING_WAIT_SECONDS,
        required=False,
        help_text=f"How long the first input of a batch waits for others; {MAX_WAIT_SECONDS} unless given.",
    )
    device_memory_bytes = fields.Integer(
        min_value=1,
        max_value=LARGEST_COUNT,
        required=False,
        allow_null=True,
        help_text=(
            "What weights may take on each server; null: what its GPU has. Layers beyond that stream from "
            "host memory."
        ),
    )


class DeploymentRequestSerializer(_SettingsSerializer):
    """What to serve: the weights of a completed job, or a function's model as `init_model` makes it."""

    job = serializers.RegexField(
        f"^{JOB_ID}$", required=False, help_text="A completed job whose function defines `predict`."
    )
    function = FunctionReference(required=False)
    hyperparameters = Hyperparameters(required=False, help_text="With `function` only.")
    project = fields.Text(max_length=64, required=False, help_text="With `function` only.")
    name = fields.Name(
        max_length=200, required=False, help_text="By default the name of the job or function."
    )
    inference_cluster = fields.Text(
        max_length=64,
        required=False,
        default="",
        allow_blank=True,
        help_text="May be omitted if there is only one.",
    )
    experts = serializers.ChoiceField(
        ExpertHosting.choices,
        required=False,
        default=ExpertHosting.WHOLE,
        help_text="`spread`: the servers, a fixed number, compute the experts of a mixture together.",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if ("job" in attrs) == ("function" in attrs):
            raise ValidationError({"job": ["Give either job or function."]})
        if "function" in attrs and "hyperparameters" not in attrs:
            raise ValidationError({"hyperparameters": ["A function needs its hyperparameters."]})
        if "job" in attrs:
            extra = [name for name in ("hyperparameters", "project") if name in attrs]
            if extra:
                raise ValidationError({name: ["A job has its own; leave it out."] for name in extra})
        return attrs


class DeploymentPatchSerializer(_SettingsSerializer):
    """Only the given fields change. Another model takes over one server at a time."""

    job = serializers.RegexField(f"^{JOB_ID}$", required=False, help_text="A job of the same project.")
    function = FunctionReference(required=False)
    hyperparameters = Hyperparameters(required=False, help_text="With `function` only.")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if not attrs:
            raise ValidationError("Name at least one setting to change.")
        if "job" in attrs and "function" in attrs:
            raise ValidationError({"job": ["Give either job or function."]})
        if ("function" in attrs) != ("hyperparameters" in attrs):
            raise ValidationError({"hyperparameters": ["Give function and hyperparameters together."]})
        return attrs


class DeploymentDrainSerializer(StrictSerializer):
    """The server that a replica leaves."""

    server = fields.Text(max_length=100, help_text="Name of a server with a replica of the deployment.")


class PredictRequestSerializer(StrictSerializer):
    """Inputs for `predict`."""

    inputs = serializers.ListField(
        child=serializers.JSONField(),
        min_length=1,
        max_length=SERVING_INPUTS,
        help_text="As the function's `predict` takes them; each gets one output.",
    )


class DeploymentTokenRequestSerializer(StrictSerializer):
    """A name by which people recognise the token."""

    name = fields.Name(max_length=100)


def _job_of(user: User, job_id: str) -> Job:
    """Raises InvalidRequest if the person may not see the job, NotAllowed if they may only look at it."""
    try:
        return job_to_steer(user, job_id)
    except NotFound as error:
        raise InvalidRequest(error.detail, errors={"job": [error.detail]}) from error


def read_creation(user: User, body: Mapping[str, Any]) -> tuple[Project, Served, DeploymentRequest]:
    """Return project, model and settings that a validated body names.

    Raises DomainErrors that say what cannot be deployed, and why.
    """
    if "job" in body:
        job = _job_of(user, body["job"])
        project, served, name = job.project, job_servable(job), job.name or job.pk
    else:
        project = project_to_submit_to(user, body.get("project"))
        version = resolve_function(project, body["function"])
        served, name = function_servable(version, body["hyperparameters"]), version.function.name
    servers = body.get("servers", {})
    # The number of servers of a group is fixed, so one number says it.
    is_group = body["experts"] == ExpertHosting.SPREAD
    least = servers.get("min", servers.get("wanted", servers.get("max", 1)) if is_group else 1)
    request = DeploymentRequest(
        name=body.get("name") or name,
        minimum_servers=least,
        maximum_servers=servers.get("max", max(least, servers.get("wanted", least))),
        servers=servers.get("wanted"),
        latency_target_seconds=body.get("latency_target_seconds"),
        max_batch=body.get("max_batch", MAX_BATCH),
        max_wait_seconds=body.get("max_wait_seconds", MAX_WAIT_SECONDS),
        device_memory_bytes=body.get("device_memory_bytes"),
        inference_cluster=body["inference_cluster"],
        experts=body["experts"],
    )
    return project, served, request


def read_change(
    user: User, deployment: Deployment, body: Mapping[str, Any]
) -> tuple[dict[str, Any], Served | None]:
    """Return the changes of a validated body, by the fields of services, and the model if it names one.

    Raises DomainErrors that say what cannot be deployed, and why.
    """
    servers, project = body.get("servers", {}), deployment.project
    names = {"min": "minimum_servers", "max": "maximum_servers", "wanted": "servers"}
    if deployment.experts == ExpertHosting.SPREAD and len(servers) == 1:
        servers = dict.fromkeys(names, *servers.values())
    changes = {field: servers[name] for name, field in names.items() if name in servers}
    for name in ("latency_target_seconds", "max_batch", "max_wait_seconds", "device_memory_bytes"):
        if name in body:
            changes[name] = body[name]
    if "job" in body:
        job = _job_of(user, body["job"])
        if job.project_id != project.pk:
            text = f"Job {job.pk} belongs to project {job.project.name}, the deployment to {project.name}."
            raise InvalidRequest(text, errors={"job": [text]})
        return changes, job_servable(job)
    if "function" in body:
        version = resolve_function(project, body["function"])
        return changes, function_servable(version, body["hyperparameters"])
    return changes, None
