"""Builds of environments: their order, limits per user, and permission to cancel."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from cluster.choices import WorkState
from projects.errors import Conflict, QuotaExceeded
from projects.models import Project, Role, User
from projects.services.openness import project_delete
from scheduling.choices import JobState
from scheduling.models import Environment, FunctionVersion, Job
from scheduling.selectors.jobs.environments import BuildQueue, build_order, in_turn
from scheduling.services.long_work import environments, installer_process, requirement_installer
from scheduling.services.long_work.environments import build_next_environment
from scheduling.services.long_work.requirement_installer import RequirementInstaller
from scheduling.services.requests.environment_requests import (
    environment_build,
    environment_cancel,
    environment_request,
)
from scheduling.services.verdicts.quotas import MOST_UNBUILT_ENVIRONMENTS
from tests.control_plane.conftest import SPEED
from tests.control_plane.simulated_agent import SimulatedAgent, settle
from tests.dashboard.waiting import wait_until
from tests.factories import FunctionVersionFactory, MembershipFactory, ProjectFactory, UserFactory

pytestmark = pytest.mark.django_db(transaction=True)

DIGEST = "d" * 64


@pytest.fixture
def curves_known() -> bool:
    return False


@pytest.fixture
def person() -> User:
    user: User = UserFactory.create(username="maria")
    return user


def project_of(person: User | None) -> Project:
    project: Project = ProjectFactory.create(created_by=person)
    if person is not None:
        MembershipFactory.create(project=project, user=person, role=Role.OWNER)
    return project


def version_in(project: Project, digest: str = DIGEST, name: str = "train") -> FunctionVersion:
    version: FunctionVersion = FunctionVersionFactory.create(
        function__project=project, function__name=name, requirements_digest=digest
    )
    return version


@transaction.atomic
def queue(digest: str, project: Project) -> Environment:
    environment_request(project, digest, f"{digest}\n")
    return Environment.objects.get(pk=digest)


def fresh(environment: Environment) -> Environment:
    return Environment.objects.get(pk=environment.pk)


# --- turns --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("queued", "started", "order"),
    [
        ("", "", ""),
        ("a1 a2 a3 b1", "", "a1 b1 a2 a3"),
        ("a1 a2 b1 c1", "a", "b1 c1 a1 a2"),
        ("a1 b1 c1 c2 a2", "ba", "c1 b1 a1 c2 a2"),
    ],
)
def test_requesters_take_turns_longest_waiting_first(queued: str, started: str, order: str) -> None:
    requests = [(digest, ord(digest[0])) for digest in queued.split()]
    since = {ord(name): datetime(2030, 1, 1 + day, tzinfo=UTC) for day, name in enumerate(started)}
    assert in_turn(requests, since) == order.split()


def test_projects_of_one_person_take_one_turn_together(person: User, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, other = project_of(person), project_of(person), project_of(None)
    for digest, project in (("m1", first), ("m2", second), ("m3", first), ("o1", other)):
        queue(digest, project)
    assert build_order() == ["m1", "o1", "m2", "m3"]
    assert [BuildQueue().builds_before(digest) for digest in ("m1", "o1", "m3")] == [0, 1, 3]
    built = []

    def install(installer: RequirementInstaller, requirements: str, overlay: Any) -> tuple[bool, str]:
        built.append(requirements.strip())
        if len(built) == 1:
            queue("n1", project_of(UserFactory.create()))
            assert BuildQueue().builds_before("n1") == 2, "one under way, one queued"
        return False, "no"

    monkeypatch.setattr(RequirementInstaller, "install", install)
    for _ in range(6):
        build_next_environment()
    assert built == ["m1", "o1", "n1", "m2", "m3"]


def test_a_worker_skips_a_build_that_another_worker_runs(
    person: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = project_of(person)
    running = environments.BUILDS.attempt(queue("a1", project).pk)
    assert running is not None
    queue("a2", project)
    monkeypatch.setattr(environments, "build_order", lambda: ["a1", "a2"])
    monkeypatch.setattr(RequirementInstaller, "install", lambda *_: (False, "no"))
    build_next_environment()
    states = dict(Environment.objects.values_list("digest", "state"))
    assert states == {"a1": WorkState.RUNNING, "a2": WorkState.FAILED}


# --- limit --------------------------------------------------------------------------------------------------


def test_a_person_has_ten_unbuilt_environments_in_all_projects(person: User) -> None:
    projects = project_of(person), project_of(person)
    for number in range(MOST_UNBUILT_ENVIRONMENTS):
        queue(f"e{number}", projects[number % 2])
    with pytest.raises(
        QuotaExceeded, match="maria created wait for 10 builds of requirements and may wait for 10"
    ):
        queue("more", projects[0])
    queue("e1", projects[0])
    queue("theirs", project_of(None))
    Environment.objects.filter(pk="e0").update(state=WorkState.DONE, finished_at=timezone.now())
    queue("more", projects[1])


# --- cancelling ---------------------------------------------------------------------------------------------


def test_a_cancelled_build_fails_the_jobs_that_wait(submit: Callable[..., Job], person: User) -> None:
    node = SimulatedAgent.enrol("node-1", 4, SPEED)
    project = project_of(person)
    version = version_in(project)
    environment = queue(DIGEST, project)
    job = submit(seconds=600, version=version)
    environment_cancel(version=version, actor=person)
    later = submit(seconds=600, version=version)
    settle(node)
    for waiting in (job, later):
        waiting.refresh_from_db()
        assert waiting.state == JobState.FAILED
        assert waiting.failure is not None
        assert waiting.failure["reason"] == "environment_failed"
        assert waiting.failure["message"] == "the build of its requirements was cancelled by maria."
    with pytest.raises(Conflict, match="No build of the requirements of train@1 is queued or under way"):
        environment_cancel(version=version, actor=person)
    environment_build(version=version, actor=person)
    environment = fresh(environment)
    assert (environment.state, environment.error, environment.attempts) == (WorkState.QUEUED, "", 0)
    with pytest.raises(Conflict, match="wait for their build already"):
        environment_build(version=version, actor=person)


def test_cancelling_a_build_under_way_ends_its_installer(
    person: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installer_process, "POLL_SECONDS", 0.01)
    install_by(monkeypatch, "echo looking for wheels; sleep 100000 & wait")
    project = project_of(person)
    version = version_in(project)
    environment = queue(DIGEST, project)
    built: list[bool] = []

    def work() -> None:
        built.append(build_next_environment())
        connection.close()

    worker = threading.Thread(target=work)
    worker.start()
    wait_until(lambda: fresh(environment).log == "looking for wheels\n", "the output is shown")
    assert fresh(environment).state == WorkState.RUNNING
    environment_cancel(version=version, actor=person)
    environment_build(version=version, actor=person)
    worker.join(60)
    assert built == [False]
    assert fresh(environment).state == WorkState.QUEUED, "a cancelled build writes nothing"


def test_a_build_that_takes_too_long_fails_with_its_output(
    person: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installer_process, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(environments, "BUILD_LIMIT_SECONDS", 0)
    install_by(monkeypatch, "echo looking for wheels; sleep 100000 & wait")
    environment = queue(DIGEST, project_of(person))
    assert not build_next_environment()
    environment = fresh(environment)
    assert environment.state == WorkState.FAILED
    assert environment.log.endswith("The installation did not end within 0 s.\n")


def test_shared_requirements_cannot_be_cancelled_by_one_project(person: User) -> None:
    own, foreign = project_of(person), project_of(None)
    MembershipFactory.create(project=foreign, user=person, role=Role.VIEWER)
    version = version_in(own)
    version_in(foreign)
    environment = queue(DIGEST, own)
    with pytest.raises(Conflict) as refused:
        environment_cancel(version=version, actor=person)
    assert foreign.name not in refused.value.detail
    assert fresh(environment).state == WorkState.QUEUED
    environment_cancel(version=version, actor=UserFactory.create(is_operator=True))
    assert fresh(environment).state == WorkState.CANCELLED


def test_deleting_a_project_cancels_its_unshared_builds(person: User) -> None:
    project, other = project_of(person), project_of(None)
    version_in(project)
    version_in(project, "s" * 64, "shared")
    version_in(other, "s" * 64)
    alone, shared = queue(DIGEST, project), queue("s" * 64, project)
    project_delete(project=project, actor=person)
    assert fresh(alone).state == WorkState.CANCELLED
    assert (fresh(shared).state, fresh(shared).project) == (WorkState.QUEUED, other)


def install_by(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Run a shell script in place of the installer."""
    run = installer_process.run_installer
    monkeypatch.setattr(
        requirement_installer, "run_installer", lambda command, **how: run(["/bin/sh", "-c", script], **how)
    )
