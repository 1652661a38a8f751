"""A submission takes few statements and locks the rows that its quotas count."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from django.db.models import Q, QuerySet
from django.db.transaction import TransactionManagementError
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from rest_framework.test import APIClient

from cluster.models import Gpu
from projects.models import ApiToken, Membership, Project, User
from projects.prepared import PreparedInsert, PreparedRows, PreparedValues, time_hole
from scheduling.models import Job
from scheduling.services.verdicts.quotas import check_active_jobs
from tests import factories as make
from tests.api.conftest import World


def statements(world: World, client: APIClient) -> int:
    with CaptureQueriesContext(connection) as captured:
        answer = client.post("/api/v1/jobs/", world.body(), format="json")
    assert answer.status_code == 201, answer.content
    asked = ("SELECT", "INSERT", "UPDATE", "EXECUTE")
    return sum(query["sql"].startswith(asked) for query in captured)


def test_submission_takes_ten_statements_for_any_number_of_jobs(world: World) -> None:
    Project.objects.filter(pk=world.project.pk).update(created_by=world.colleague)
    client = world.client(world.colleague)
    statements(world, client)  # creates the curve and notes the use of the token
    assert statements(world, client) == 10
    make.JobFactory.create_batch(5, project=world.project)
    assert statements(world, client) == 10


def test_prepared_values_equal_the_rows_of_their_queryset(world: World) -> None:
    def of_project(project: Any) -> Any:
        return Job.objects.filter(project=project).exclude(state="completed").values_list("pk", "state")

    jobs = PreparedValues(of_project)
    make.JobFactory.create(project=world.project, state="completed")
    for project in (world.project, world.foreign_project):
        assert jobs.ask(project.pk) == list(of_project(project))
    assert len(jobs.ask(world.project.pk)) == 1
    kinds = PreparedValues(lambda kind: Gpu.objects.filter(kind=kind, emulated=True).values_list("pk"))
    (kind,) = set(Gpu.objects.values_list("kind", flat=True))
    Gpu.objects.update(emulated=True)
    assert len(kinds.ask(kind)) == Gpu.objects.count()
    assert kinds.ask("'; drop table cluster_gpu; --") == []


def test_a_prepared_question_takes_several_ids_and_a_time(world: World) -> None:
    jobs = [world.job.pk, *(made.pk for made in make.JobFactory.create_batch(2, project=world.project))]
    since = PreparedValues(
        lambda ids, moment: (
            Job.objects.filter(pk__any_of=ids, submitted_at__gte=time_hole(moment))
            .order_by("pk")
            .values_list("pk")
        )
    )
    first = min(Job.objects.values_list("submitted_at", flat=True))
    for asked in (jobs, jobs[1:], []):
        assert [job for (job,) in since.ask(asked, first)] == sorted(asked)
    assert not since.any(jobs, timezone.now() + timedelta(days=1))
    with pytest.raises(Job.DoesNotExist):
        PreparedRows(lambda job_id: Job.objects.filter(pk=job_id)).get("nobody")


def test_prepared_rows_equal_models_with_related_and_annotated_fields(world: World) -> None:
    def of_person(user: Any, name: Any) -> QuerySet[Membership]:
        rows = Membership.objects.filter(user=user, project__name=name).select_related("project")
        return rows.annotate(of_owner=Q(role="owner"))

    memberships = PreparedRows(of_person)
    for person, project in ((world.owner, world.project), (world.stranger, world.foreign_project)):
        (membership,) = memberships.ask(person.pk, project.name)
        assert membership == Membership.objects.get(user=person, project=project)
        with CaptureQueriesContext(connection) as captured:
            assert membership.project == project
        assert not captured.captured_queries
        assert membership.of_owner is True  # type: ignore[attr-defined]
    assert memberships.first(world.viewer.pk, world.project.name).of_owner is False  # type: ignore[union-attr]
    assert memberships.first(world.stranger.pk, world.project.name) is None
    Membership.objects.filter(user=world.owner).delete()
    assert memberships.first(world.owner.pk, world.project.name) is None, "nothing of an answer is kept"


def test_literals_in_prepared_queries_are_kept_verbatim(world: World) -> None:
    odd = make.ProjectFactory.create(name="100 % 'done' $1 {}")
    make.ProjectFactory.create(name="100 _ 'done' $1 {}")
    named = PreparedRows(lambda pk: Project.objects.filter(name="100 % 'done' $1 {}", pk__gte=pk))
    assert named.ask(1) == [odd]
    holding = PreparedRows(lambda pk: Project.objects.filter(name__contains="100 % 'd", pk__gte=pk))
    assert holding.ask(1) == [odd]


def test_a_prepared_insert_stores_what_a_created_row_has(world: World) -> None:
    fields: dict[str, Any] = {
        "project": world.project,
        "owner": world.owner,
        "cluster_id": world.job.cluster_id,
        "function_version": world.version,
        "curve": world.job.curve,
        "name": "100 % 'done' $1",
        "labels": {"a": "it's"},
        "hyperparameters": {"global_batch_size": 8, "rates": [0.1, None, True]},
        "global_batch_size": 8,
        "max_iterations": 10**10,
        "data": [{"name": "train", "path": "/data"}],
        "service_class": "slo",
        "deadline_at": timezone.now(),
        "submitted_at": timezone.now(),
    }
    created = Job.objects.create(**fields)
    stored = Job(**fields)
    PreparedInsert(Job).store(stored)
    created.refresh_from_db()
    again = Job.objects.get(pk=stored.pk)
    differ = {
        field.attname
        for field in Job._meta.concrete_fields
        if getattr(again, field.attname) != getattr(created, field.attname)
    }
    assert differ == {"id"}
    stored.name = "changed"
    stored.save()
    assert Job.objects.filter(name="changed").count() == 1, "it is a stored row"


@pytest.mark.django_db(transaction=True)
def test_statements_are_prepared_once_per_database_session() -> None:
    projects = PreparedRows(lambda pk: Project.objects.filter(pk=pk))
    project = make.ProjectFactory.create()

    def preparations() -> int:
        with CaptureQueriesContext(connection) as captured:
            assert projects.ask(project.pk) == [project]
        return sum(query["sql"].startswith("PREPARE") for query in captured)

    with transaction.atomic():
        assert preparations() == 1
        transaction.set_rollback(True)
    assert preparations() == 0, "what is rolled back is no statement"
    connection.close()
    assert preparations() == 1
    assert preparations() == 0


def test_a_prepared_question_has_a_place_for_each_value() -> None:
    with pytest.raises(ValueError, match="no place"):
        PreparedValues(lambda digest, _: ApiToken.objects.filter(digest=digest)).ask("digest", "lost")


@pytest.mark.django_db(transaction=True)
def test_prepared_query_locks_only_in_a_transaction() -> None:
    projects = PreparedRows(lambda pk: Project.objects.select_for_update().filter(pk=pk))
    project = make.ProjectFactory.create()
    with transaction.atomic():
        assert projects.ask(project.pk) == [project]
    with pytest.raises(TransactionManagementError):
        projects.ask(project.pk)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("has_creator", [True, False])
def test_admission_locks_the_project_and_its_creator(has_creator: bool) -> None:
    creator = make.UserFactory.create()
    project = make.ProjectFactory.create(created_by=creator if has_creator else None)

    def locked_for_others(model: type[Project | User], pk: int) -> bool:
        is_locked: list[bool] = []

        def look() -> None:
            try:
                with transaction.atomic():
                    model._default_manager.select_for_update(nowait=True).get(pk=pk)
                is_locked.append(False)
            except OperationalError:
                is_locked.append(True)
            finally:
                connection.close()

        _in_a_thread(look)
        return is_locked[0]

    with transaction.atomic():
        check_active_jobs(project)
        assert locked_for_others(Project, project.pk)
        assert locked_for_others(User, creator.pk) == has_creator
    assert not locked_for_others(Project, project.pk)


def _in_a_thread(action: Callable[[], None]) -> None:
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()
