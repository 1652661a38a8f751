"""Requests for environments: queued when a function is uploaded, cancelled, and built again."""

from __future__ import annotations

from django.db import transaction
from django.utils import timezone

from cluster.choices import WorkState
from projects.access import require_role
from projects.errors import Conflict
from projects.models import Project, Role, User
from projects.services.openness import lock_open_project
from scheduling.models import Environment, FunctionVersion
from scheduling.selectors.jobs.environments import UNBUILT_STATES
from scheduling.selectors.scope.visibility import steerable_project_ids
from scheduling.services.long_work.environments import BUILDS, fail_waiting_jobs
from scheduling.services.verdicts.quotas import check_unbuilt_environments

_ENDED_WITHOUT_RESULT = (WorkState.FAILED, WorkState.CANCELLED)


def environment_request(project: Project, digest: str, requirements: str) -> None:
    """Queue the build of a project's requirements unless they are installed or queued already.

    The caller's transaction has locked the rows of the project and its creator. This locks the environment's
    row too, so that it is not cancelled before the version that needs it is stored.

    Raises:
        QuotaExceeded: too many of their environments are not built yet.
    """
    environment, new = Environment.objects.get_or_create(
        digest=digest, defaults={"requirements": requirements, "project": project}
    )
    if not new:
        environment = Environment.objects.select_for_update().get(pk=digest)
    if new or environment.state in _ENDED_WITHOUT_RESULT:
        _queue(environment, project)


@transaction.atomic
def environment_build(*, version: FunctionVersion, actor: User) -> None:
    """Build a failed or cancelled environment again.

    Raises:
        NotAllowed: the actor may not upload to the function's project.
        Conflict: the requirements are missing, installed, queued or being built; or the project is archived.
        QuotaExceeded: too many of their environments are not built yet.
    """
    project = version.function.project
    require_role(actor, project, Role.MEMBER)
    project = lock_open_project(project, and_its_creator=True)
    environment = _lock(version)
    if environment.state not in _ENDED_WITHOUT_RESULT:
        what = {
            WorkState.DONE: "are installed",
            WorkState.QUEUED: "wait for their build already",
            WorkState.RUNNING: "are being installed",
        }[WorkState(environment.state)]
        raise Conflict(f"The requirements of {_reference(version)} {what}; there is nothing to build again.")
    _queue(environment, project)


@transaction.atomic
def environment_cancel(*, version: FunctionVersion, actor: User) -> None:
    """Cancel a queued or running build and fail the jobs that wait for it. Its worker loses the lease, and
    ends the installer when it notices.

    Raises:
        NotAllowed: the actor may not upload to the function's project.
        Conflict: no build is queued or running, or projects need it in which the actor may not cancel jobs.
    """
    require_role(actor, version.function.project, Role.MEMBER)
    environment = _lock(version)
    if environment.state not in UNBUILT_STATES:
        raise Conflict(
            f"No build of the requirements of {_reference(version)} is queued or under way; "
            f"they are {environment.get_state_display().lower()}."
        )
    own = steerable_project_ids(actor)
    users = FunctionVersion.objects.filter(requirements_digest=environment.digest)
    if own is not None and users.exclude(function__project__in=own).exists():
        raise Conflict(
            f"The requirements of {_reference(version)} are needed outside of your projects too; "
            "only an operator can cancel their build."
        )
    _cancel(environment, f"the build of its requirements was cancelled by {actor.username}.")


def release_environments(project: Project) -> None:
    """Cancel builds that only this project needs, before it is deleted. Assign the others to a project
    that needs them."""
    unbuilt = Environment.objects.select_for_update().filter(project=project, state__in=UNBUILT_STATES)
    for environment in unbuilt.order_by("pk"):
        others = FunctionVersion.objects.filter(requirements_digest=environment.digest)
        needed_by = others.exclude(function__project=project).select_related("function").first()
        if needed_by is None:
            _cancel(environment, "the project that asked for its requirements was deleted.")
        else:
            environment.project_id = needed_by.function.project_id
            environment.save(update_fields=["project"])


def _lock(version: FunctionVersion) -> Environment:
    environments = Environment.objects.select_for_update()
    environment = environments.filter(pk=version.requirements_digest).first()
    if environment is None:
        raise Conflict(f"{_reference(version)} has no requirements.txt; there is nothing to build.")
    return environment


def _queue(environment: Environment, project: Project) -> None:
    check_unbuilt_environments(project, environment.digest)
    environment.project = project
    environment.state, environment.attempts, environment.created_at = WorkState.QUEUED, 0, timezone.now()
    environment.finished_at = None
    environment.error = environment.log = ""
    environment.save()
    BUILDS.announce(environment)


def _cancel(environment: Environment, error: str) -> None:
    environment.state, environment.finished_at = WorkState.CANCELLED, timezone.now()
    environment.lease_token = environment.lease_owner = ""
    environment.lease_expires_at = None
    environment.error = error
    environment.save()
    fail_waiting_jobs(environment)


def _reference(version: FunctionVersion) -> str:
    return f"{version.function.name}@{version.number}"
