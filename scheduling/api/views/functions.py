"""Uploading and reading training functions."""

from __future__ import annotations

from collections.abc import Callable

from django.conf import settings
from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from projects.access import require_role
from projects.api.base import ApiView
from projects.api.filters import read_filters
from projects.api.parsing import TOO_LARGE_KEY
from projects.errors import InvalidRequest, TooLarge
from projects.models import Role, Scope, User
from projects.selectors import find_project
from scheduling.api import function_serializers as shapes
from scheduling.models import FunctionVersion
from scheduling.selectors.jobs.functions import bundle_content, newest_versions, version_get, versions_of
from scheduling.services.requests.environment_requests import environment_build, environment_cancel
from scheduling.services.requests.functions import function_upload


@extend_schema(tags=["functions"])
class FunctionsView(ApiView):
    """The caller's functions."""

    token_scopes = {"POST": Scope.SUBMIT}
    queryset = FunctionVersion.objects.none()
    parser_classes = (MultiPartParser,)
    throttle_scopes = {"POST": "submissions"}

    @extend_schema(
        operation_id="function_list",
        summary="List functions",
        description="The newest version of each function.",
        parameters=[shapes.FunctionFilterSerializer],
        responses=shapes.ListedVersionSerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        filters = read_filters(request, shapes.FunctionFilterSerializer)
        versions = newest_versions(self.user, project=filters.get("project"), name=filters.get("name"))
        return self.page(versions, shapes.ListedVersionSerializer)

    @extend_schema(
        operation_id="function_upload",
        summary="Upload a function",
        description=(
            "Stores one `.py` file or a zip as the next version of the function. The code is never run here: "
            "class, entry and `speed_neutral` are read from the syntax tree. A `requirements.txt` at the top "
            "of the zip may name packages (installed as wheels), but no options, URLs, files or "
            "repositories. The same bytes again are the same version: 200."
        ),
        request={"multipart/form-data": shapes.UploadSerializer},
        responses={
            201: shapes.FunctionVersionSerializer,
            200: OpenApiResponse(
                shapes.FunctionVersionSerializer, description="This version existed already."
            ),
        },
    )
    def post(self, request: Request) -> Response:
        return self.idempotently(self._upload)

    def _upload(self) -> Response:
        data = self.request.data  # read first: whether it is too large is known only then
        if self.request.META.get(TOO_LARGE_KEY):
            raise TooLarge(
                f"The bundle is larger than {settings.MAXIMUM_BUNDLE_BYTES} bytes; nothing was stored. "
                "Data does not belong into a bundle: name it in the job's `data`."
            )
        serializer = shapes.UploadSerializer(data=data)
        serializer.is_valid(raise_exception=True)
        body = serializer.validated_data
        project = find_project(self.user, body["project"])
        if project is None:
            message = f"There is no project {body['project']} among yours."
            raise InvalidRequest(message, errors={"project": [message]})
        require_role(self.user, project, Role.MEMBER)
        version, created = function_upload(
            project=project,
            actor=self.user,
            name=body["name"],
            content=body["bundle"].read(),
            filename=body["bundle"].name,
            entry=body.get("entry"),
        )
        shown = version_get(self.user, version.function_id, version.number)
        return Response(shapes.FunctionVersionSerializer(shown).data, status=201 if created else 200)


@extend_schema(tags=["functions"])
class FunctionView(ApiView):
    """One function."""

    queryset = FunctionVersion.objects.none()

    @extend_schema(
        operation_id="function",
        summary="Show a function",
        description="Its newest version.",
        responses=shapes.FunctionVersionSerializer,
    )
    def get(self, request: Request, function_id: int) -> Response:
        return Response(shapes.FunctionVersionSerializer(version_get(self.user, function_id)).data)


@extend_schema(tags=["functions"])
class VersionsView(ApiView):
    """A function's versions."""

    queryset = FunctionVersion.objects.none()

    @extend_schema(
        operation_id="function_version_list",
        summary="List a function's versions",
        responses=shapes.ListedVersionSerializer(many=True),
    )
    def get(self, request: Request, function_id: int) -> Response:
        function = version_get(self.user, function_id).function
        return self.page(versions_of(self.user, function), shapes.ListedVersionSerializer)


@extend_schema(tags=["functions"])
class VersionView(ApiView):
    """One version."""

    queryset = FunctionVersion.objects.none()

    @extend_schema(
        operation_id="function_version",
        summary="Show a version of a function",
        responses=shapes.FunctionVersionSerializer,
    )
    def get(self, request: Request, function_id: int, number: int) -> Response:
        return Response(shapes.FunctionVersionSerializer(version_get(self.user, function_id, number)).data)


@extend_schema(tags=["functions"])
class BundleView(ApiView):
    """A version's bytes."""

    queryset = FunctionVersion.objects.none()

    @extend_schema(
        operation_id="function_bundle",
        summary="Download a version's bundle",
        responses={(200, "application/octet-stream"): OpenApiTypes.BINARY},
    )
    def get(self, request: Request, function_id: int, number: int) -> HttpResponse:
        version = version_get(self.user, function_id, number)
        content = bundle_content(version)
        ending = "zip" if content.startswith(b"PK") else "py"
        return HttpResponse(
            content,
            content_type="application/octet-stream",
            headers={
                "Content-Disposition": f'attachment; filename="{version.function.name}-{number}.{ending}"',
                "X-Content-SHA256": version.bundle_id,
                "Cache-Control": "private, max-age=31536000, immutable",
            },
        )


class EnvironmentActionView(ApiView):
    """What members do to the environment of a version; the answer is the version as it is then."""

    token_scopes = {"POST": Scope.SUBMIT}
    queryset = FunctionVersion.objects.none()

    def act(
        self, function_id: int, number: int, service: Callable[[FunctionVersion, User], None]
    ) -> Response:
        """Apply the service to the version, at most once for each `Idempotency-Key`."""

        def answer() -> Response:
            service(version_get(self.user, function_id, number), self.user)
            shown = version_get(self.user, function_id, number)
            return Response(shapes.FunctionVersionSerializer(shown).data)

        return self.idempotently(answer)


@extend_schema(tags=["functions"])
class EnvironmentCancelView(EnvironmentActionView):
    """Cancelling a build."""

    @extend_schema(
        operation_id="function_environment_cancel",
        summary="Cancel the build of a version's requirements",
        description=(
            "Ends a build that is queued or under way. Jobs that wait for it fail. 409 where a project needs "
            "the same requirements in which the caller may not cancel jobs."
        ),
        request=None,
        responses=shapes.FunctionVersionSerializer,
    )
    def post(self, request: Request, function_id: int, number: int) -> Response:
        return self.act(
            function_id, number, lambda version, actor: environment_cancel(version=version, actor=actor)
        )


@extend_schema(tags=["functions"])
class EnvironmentBuildView(EnvironmentActionView):
    """Building once more."""

    @extend_schema(
        operation_id="function_environment_build",
        summary="Build a version's requirements again",
        description="Queues a build again that failed or was cancelled, as uploading the function does.",
        request=None,
        responses=shapes.FunctionVersionSerializer,
    )
    def post(self, request: Request, function_id: int, number: int) -> Response:
        return self.act(
            function_id, number, lambda version, actor: environment_build(version=version, actor=actor)
        )
