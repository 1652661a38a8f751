"""Submitting, listing and steering jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from threading import local
from typing import Any, cast

from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from projects.api import fields
from projects.api.base import ApiView, StrictSerializer
from projects.api.filters import read_filters
from projects.api.pagination import LatestSubmittedFirst
from projects.models import Scope, User
from scheduling.api import job_serializers as shapes
from scheduling.api.examples import JOB_EXAMPLES
from scheduling.api.job_requests import (
    DeadlineChangeSerializer,
    JobOverridesSerializer,
    JobRequestSerializer,
    WhatIfRequestSerializer,
    cloned_body,
    request_from,
)
from scheduling.api.waiting import LONGEST_SECONDS, hold_until_verdict, wait_seconds
from scheduling.choices import JobState, ServiceClass
from scheduling.models import Job
from scheduling.selectors.jobs.environments import BuildQueue
from scheduling.selectors.jobs.jobs import as_submitted, job_get, job_to_steer, jobs_matching, jobs_shown_to
from scheduling.selectors.scope.hiding import mask_for
from scheduling.services.requests.declining_offers import job_decline_offer
from scheduling.services.requests.jobs import job_cancel, job_pause, job_resume, job_submit

WAIT = OpenApiParameter(
    "wait",
    {"type": "number", "minimum": 0, "maximum": LONGEST_SECONDS, "default": 0},
    description="Seconds to wait for the verdict. Few requests wait at a time; others receive `pending`.",
)


class JobFilterSerializer(StrictSerializer):
    """Filters of the list of jobs; all must hold."""

    project = serializers.CharField(max_length=64, required=False)
    state = serializers.ListField(
        child=serializers.ChoiceField(
            JobState.choices,
            error_messages={
                "invalid_choice": f'"{{input}}" is no state; known: {", ".join(JobState.values)}.'
            },
        ),
        required=False,
        help_text="Any of these values; repeatable.",
    )
    service_class = serializers.ChoiceField(ServiceClass.choices, required=False)
    promised = serializers.BooleanField(required=False, allow_null=True, default=None)
    at_risk = serializers.BooleanField(required=False, allow_null=True, default=None)
    owner = serializers.CharField(max_length=150, required=False)
    function = serializers.CharField(max_length=100, required=False)
    label = serializers.ListField(  # type: ignore[assignment]
        child=serializers.RegexField(
            r"^[^:]{1,63}:.{0,200}$", error_messages={"invalid": "Write it as label=key:value."}
        ),
        required=False,
        help_text="`key:value`; repeatable: a job must have all of them.",
    )
    search = serializers.CharField(
        max_length=200, required=False, help_text="Text in the id, the name or the function's name."
    )
    submitted_after = fields.Moment(required=False)
    submitted_before = fields.Moment(required=False)
    deadline_before = fields.Moment(required=False)


_of_this_thread = local()


def _serializer_of_this_thread() -> tuple[shapes.JobSerializer, dict[str, Any]]:
    """The serializer of jobs with its context. Making one inspects the model and copies forty fields, which
    takes as long as storing a job."""
    if not hasattr(_of_this_thread, "made"):
        context: dict[str, Any] = {}
        _of_this_thread.made = (shapes.JobSerializer(context=context), context)
    made: tuple[shapes.JobSerializer, dict[str, Any]] = _of_this_thread.made
    return made


def _submission_read_in_this_thread(body: Any) -> dict[str, Any]:
    """The validated body of a submission. The fields are built once and shared; each serializer has its own
    input and output.

    Raises:
        ValidationError: the body is no submission.
    """
    if not hasattr(_of_this_thread, "submission"):
        _of_this_thread.submission = JobRequestSerializer()
        _ = _of_this_thread.submission.fields
    serializer = copy(_of_this_thread.submission)
    serializer.initial_data = body
    serializer.is_valid(raise_exception=True)
    return cast(dict[str, Any], serializer.validated_data)


class JobAnswerView(ApiView):
    """Base of views that answer with a job."""

    queryset = Job.objects.none()

    def answer(self, job_id: str, status: int = 200) -> Response:
        """The job as it is now."""
        return Response(self.render([job_get(self.user, job_id)])[0], status=status)

    def render(self, jobs: Sequence[Job]) -> list[dict[str, Any]]:
        """The jobs' representations, without the names of jobs that the caller may not see."""
        mask = mask_for(self.user, [(job.verdict or {}).get("reason") for job in jobs])
        serializer, context = _serializer_of_this_thread()
        context["mask"] = mask
        context["build_queue"] = BuildQueue()
        return [serializer.to_representation(job) for job in jobs]

    def submitted(self, action: Callable[[], Response], seconds: float) -> Response:
        """Submit at most once, then wait for the verdict outside of the transaction."""
        response = self.idempotently(action)
        fresh = "Idempotency-Replayed" not in response.headers and response.status_code == 201
        if fresh and hold_until_verdict(response.data["id"], seconds):
            response.data = self.answer(response.data["id"]).data
            self.amend_answer(response)
        return response


@extend_schema(tags=["jobs"])
class JobsView(JobAnswerView):
    """The caller's jobs."""

    token_scopes = {"POST": Scope.SUBMIT}
    pagination_class = LatestSubmittedFirst
    throttle_scopes = {"POST": "submissions"}

    @extend_schema(
        operation_id="job_list",
        summary="List jobs",
        parameters=[JobFilterSerializer],
        responses=shapes.JobSerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        filters = read_filters(request, JobFilterSerializer)
        found = self.paginate_queryset(jobs_matching(jobs_shown_to(self.user), filters)) or []
        return self.get_paginated_response(self.render(found))

    @extend_schema(
        operation_id="job_submit",
        summary="Submit a job",
        description=(
            "The body states the work and the deadline, never a number of GPUs. The answer is 201 "
            "with the job, also for a declined job, which then has state `declined` and, if "
            "possible, an offer of a deadline that can be promised."
        ),
        parameters=[WAIT],
        request=JobRequestSerializer,
        responses={201: shapes.JobSerializer},
        examples=JOB_EXAMPLES,
    )
    def post(self, request: Request) -> Response:
        return self.submitted(self._submit, wait_seconds(request))

    def _submit(self) -> Response:
        body = _submission_read_in_this_thread(self.request.data)
        project, job_request = request_from(self.user, body)
        job = job_submit(project=project, owner=self.user, request=job_request)
        return Response(self.render([as_submitted(job)])[0], status=201)


@extend_schema(tags=["jobs"])
class JobView(JobAnswerView):
    """One job."""

    @extend_schema(
        operation_id="job", summary="Show a job", parameters=[WAIT], responses=shapes.JobSerializer
    )
    def get(self, request: Request, job_id: str) -> Response:
        seconds = wait_seconds(request)
        job = job_get(self.user, job_id)
        if job.decided_at is None and hold_until_verdict(job_id, seconds):
            return self.answer(job_id)
        return Response(self.render([job])[0])


class JobActionView(JobAnswerView):
    """Base of views that change a job by a service and answer with it."""

    token_scopes = {"POST": Scope.SUBMIT}

    def act(self, job_id: str) -> Response:
        def action() -> Response:
            changed = self.run_service(job_to_steer(self.user, job_id), self.user)
            return self.answer(changed.pk)

        return self.idempotently(action)

    def run_service(self, job: Job, actor: User) -> Job:
        raise NotImplementedError


@extend_schema(tags=["jobs"])
class JobCancelView(JobActionView):
    """Ending a job."""

    @extend_schema(
        operation_id="job_cancel",
        summary="Cancel a job",
        description="Ends the job now. An open promise becomes void.",
        request=None,
        responses={200: shapes.JobSerializer},
    )
    def post(self, request: Request, job_id: str) -> Response:
        return self.act(job_id)

    def run_service(self, job: Job, actor: User) -> Job:
        return job_cancel(job=job, actor=actor)


@extend_schema(tags=["jobs"])
class JobPauseView(JobActionView):
    """Taking a job's GPUs away."""

    @extend_schema(
        operation_id="job_pause",
        summary="Pause a job",
        description="Gives up its GPUs until it is resumed; its state is kept. An open promise is void "
        "meanwhile.",
        request=None,
        responses={200: shapes.JobSerializer},
    )
    def post(self, request: Request, job_id: str) -> Response:
        return self.act(job_id)

    def run_service(self, job: Job, actor: User) -> Job:
        return job_pause(job=job, actor=actor)


@extend_schema(tags=["jobs"])
class JobResumeView(JobActionView):
    """Letting a paused job go on."""

    @extend_schema(
        operation_id="job_resume",
        summary="Resume a paused job",
        description=(
            "A promise that its pause made void is decided again, and restored where it can be kept; the "
            "verdict says so."
        ),
        request=None,
        responses={200: shapes.JobSerializer},
    )
    def post(self, request: Request, job_id: str) -> Response:
        return self.act(job_id)

    def run_service(self, job: Job, actor: User) -> Job:
        return job_resume(job=job, actor=actor)


@extend_schema(tags=["jobs"])
class JobAcceptOfferView(JobAnswerView):
    """Taking an offered deadline."""

    token_scopes = {"POST": Scope.SUBMIT}

    @extend_schema(
        operation_id="job_accept_offer",
        summary="Accept the deadline offered to a declined job",
        description="Answers with the admitted successor, a job of its own (`resubmission_of`).",
        request=None,
        responses={201: shapes.JobSerializer},
    )
    def post(self, request: Request, job_id: str) -> Response:
        return self.idempotently(lambda: self._accept(job_id))

    def _accept(self, job_id: str) -> Response:
        # Imported here: answering loads the decision core, which nothing else of this process needs.
        from scheduling.services.requests.accepting import job_accept_offer

        successor = job_accept_offer(job=job_to_steer(self.user, job_id), actor=self.user)
        return self.answer(successor.pk, 201)


@extend_schema(tags=["jobs"])
class JobDeclineOfferView(JobActionView):
    """Letting go of an offered deadline."""

    @extend_schema(
        operation_id="job_decline_offer",
        summary="Decline the deadline offered to a declined job",
        description="Releases at once what is held for the offer.",
        request=None,
        responses={200: shapes.JobSerializer},
    )
    def post(self, request: Request, job_id: str) -> Response:
        return self.act(job_id)

    def run_service(self, job: Job, actor: User) -> Job:
        return job_decline_offer(job=job, actor=actor)


@extend_schema(tags=["jobs"])
class JobCloneView(JobAnswerView):
    """Submitting a job again."""

    token_scopes = {"POST": Scope.SUBMIT}
    throttle_scopes = {"POST": "submissions"}

    @extend_schema(
        operation_id="job_clone",
        summary="Submit a job again, with changes",
        description=(
            "The body holds the fields to change; hyperparameters and termination are merged. Unless "
            "the body has a deadline, the new job has as much time from its submission as the old one had."
        ),
        parameters=[WAIT],
        request=JobOverridesSerializer,
        responses={201: shapes.JobSerializer},
        examples=[
            OpenApiExample(
                "Longer, with another learning rate",
                request_only=True,
                value={"deadline_seconds": 3600, "hyperparameters": {"learning_rate": 0.003}},
            )
        ],
    )
    def post(self, request: Request, job_id: str) -> Response:
        return self.submitted(lambda: self._clone(job_id), wait_seconds(request))

    def _clone(self, job_id: str) -> Response:
        old = job_to_steer(self.user, job_id)
        overrides = self.request.data
        if not isinstance(overrides, dict):
            raise serializers.ValidationError("The body must be an object with the fields to change.")
        serializer = JobRequestSerializer(data=cloned_body(old, overrides))
        serializer.is_valid(raise_exception=True)
        project, job_request = request_from(self.user, serializer.validated_data)
        job = job_submit(project=project, owner=self.user, request=job_request, resubmission_of=old)
        return self.answer(job.pk, 201)


@extend_schema(tags=["jobs"])
class JobDeadlineView(JobAnswerView):
    """Asking for another deadline."""

    token_scopes = {"POST": Scope.SUBMIT}
    throttle_scopes = {"POST": "submissions"}

    @extend_schema(
        operation_id="job_change_deadline",
        summary="Change a job's deadline or class",
        description=(
            "A refused tightening keeps the old promise (`changed` false); loosening never revokes one. "
            "A best-effort job may ask to become `slo`."
        ),
        request=DeadlineChangeSerializer,
        responses={200: shapes.DeadlineAnswerSerializer},
        examples=[OpenApiExample("In an hour", request_only=True, value={"deadline_seconds": 3600})],
    )
    def post(self, request: Request, job_id: str) -> Response:
        return self.idempotently(lambda: self._change(job_id))

    def _change(self, job_id: str) -> Response:
        job = job_to_steer(self.user, job_id)
        body = self.read(DeadlineChangeSerializer)
        named = "service_class" in self.request.data
        keeps_soft = (
            job.service_class == ServiceClass.SOFT and body.get("deadline_at") is not None and not named
        )
        from scheduling.services.requests.what_if import job_change_deadline

        changed_job, verdict, changed = job_change_deadline(
            job=job,
            actor=self.user,
            deadline_at=body.get("deadline_at"),
            service_class=ServiceClass.SOFT if keeps_soft else body["service_class"],
        )
        mask = mask_for(self.user, [verdict.reason])
        return Response(
            {
                "job": self.render([job_get(self.user, changed_job.pk)])[0],
                "verdict": shapes.VerdictSerializer(verdict, context={"mask": mask}).data,
                "changed": changed,
            }
        )


@extend_schema(tags=["jobs"])
class WhatIfView(ApiView):
    """Asking without submitting."""

    token_scopes = {"POST": Scope.SUBMIT}
    throttle_scopes = {"POST": "what_if"}
    remembers_answers = False

    @extend_schema(
        operation_id="what_if",
        summary="Ask what the verdict would be",
        description="Stores no job and holds no offer. For an unknown scaling curve: `pending`, "
        "`needs_profiling`.",
        request=WhatIfRequestSerializer,
        responses={200: shapes.VerdictSerializer},
        examples=JOB_EXAMPLES[:2],
    )
    def post(self, request: Request) -> Response:
        body = self.read(WhatIfRequestSerializer)
        project, job_request = request_from(self.user, body)
        link = body.get("link_bytes_per_second")
        from scheduling.services.requests.what_if import job_what_if

        verdict = job_what_if(project=project, request=job_request, link_bytes_per_second=link)
        mask = mask_for(self.user, [verdict.reason])
        return Response(shapes.VerdictSerializer(verdict, context={"mask": mask}).data)
