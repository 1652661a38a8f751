"""Functions and their versions that a person may see. Only downloads read the bundles' bytes."""

from __future__ import annotations

from django.db.models import Exists, F, OuterRef, QuerySet, Subquery

from projects.errors import InvalidRequest, NotFound
from projects.models import Project, User
from projects.prepared import PreparedRows
from scheduling.models import Bundle, Environment, Function, FunctionVersion
from scheduling.selectors.scope.visibility import visible_project_ids


def versions_visible_to(user: User) -> QuerySet[FunctionVersion]:
    """Return all versions that the person may see, with the API's fields."""
    environment = Environment.objects.filter(pk=OuterRef("requirements_digest"))
    versions = FunctionVersion.objects.select_related("function__project", "created_by").annotate(
        size_bytes=F("bundle__size_bytes"),
        environment_state=Subquery(environment.values("state")[:1]),
        environment_started_at=Subquery(environment.values("started_at")[:1]),
    )
    seen = visible_project_ids(user)
    return versions if seen is None else versions.filter(function__project__in=seen)


def newest_versions(
    user: User, *, project: str | None = None, name: str | None = None
) -> QuerySet[FunctionVersion]:
    """Return the newest version of each function, without its files.

    ``project``: only functions of the project of that name; ``name``: only the function of that name.
    """
    newer = FunctionVersion.objects.filter(function=OuterRef("function"), number__gt=OuterRef("number"))
    versions = versions_visible_to(user).filter(~Exists(newer)).defer("files")
    if project is not None:
        versions = versions.filter(function__project__name=project)
    return versions if name is None else versions.filter(function__name=name)


def versions_of(user: User, function: Function) -> QuerySet[FunctionVersion]:
    """Return the versions of a function that the person may see, without their files."""
    return versions_visible_to(user).filter(function=function).defer("files")


def bundle_content(version: FunctionVersion) -> bytes:
    """Return the bytes of the version's bundle."""
    return bytes(Bundle.objects.values_list("content", flat=True).get(pk=version.bundle_id))


def version_get(user: User, function_id: int, number: int | None = None) -> FunctionVersion:
    """Return one version of a function (default: the newest) with its installer's output.

    Raises:
        NotFound: there is none, or the person may not see it.
    """
    versions = versions_visible_to(user).filter(function=function_id)
    if number is not None:
        versions = versions.filter(number=number)
    environment = Environment.objects.filter(pk=OuterRef("requirements_digest"))
    versions = versions.annotate(
        environment_error=Subquery(environment.values("error")[:1]),
        environment_log=Subquery(environment.values("log")[:1]),
    )
    version = versions.order_by("-number").first()
    if version is None:
        raise NotFound("There is no such function, or no such version of it, among yours.")
    return version


def resolve_function(project: Project, reference: str | int) -> FunctionVersion:
    """Return the version that a job names within the project: ``name``, ``name@3``, ``sha256:…`` or a
    function's id.

    Raises:
        InvalidRequest: the project has no such function; the message lists what it has.
    """
    found = _by_reference(project, reference)
    if found is None:
        names = sorted(set(_versions_in(project.pk).values_list("function__name", flat=True)[:200]))
        known = ", ".join(names[:10]) or "none yet: upload one with POST /api/v1/functions/"
        message = f"Project {project.name} has no function {str(reference)[:100]}. It has: {known}."
        raise InvalidRequest(message, errors={"function": [message]})
    return found


def _versions_in(project_id: int) -> QuerySet[FunctionVersion]:
    """Return the project's versions with their functions, the newest first."""
    versions = FunctionVersion.objects.filter(function__project=project_id).select_related("function")
    return versions.order_by("-number", "-pk")


_NEWEST = PreparedRows(lambda project, name: _versions_in(project).filter(function__name=name)[:1])
_NUMBERED = PreparedRows(
    lambda project, name, number: _versions_in(project).filter(function__name=name, number=number)[:1]
)


def _by_reference(project: Project, reference: str | int) -> FunctionVersion | None:
    if isinstance(reference, int):
        return _versions_in(project.pk).filter(function=reference).first()
    if reference.startswith("sha256:"):
        of_bundle = _versions_in(project.pk).filter(bundle=reference.removeprefix("sha256:"))
        return of_bundle.order_by("-pk").first()
    name, at, number = reference.partition("@")
    if at:
        return _NUMBERED.first(project.pk, name, int(number)) if _is_row_id(number) else None
    named = _NEWEST.first(project.pk, name)
    if named is None and _is_row_id(name):
        return _versions_in(project.pk).filter(function=int(name)).first()
    return named


def _is_row_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9
