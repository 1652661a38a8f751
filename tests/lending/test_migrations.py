"""Lending's tables were once the cluster's: a database with rows in all of them keeps every one."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.contrib.contenttypes.models import ContentType
from django.db import IntegrityError, connection, transaction
from django.db.migrations.executor import MigrationExecutor
from django.utils import timezone

from tests.factories import UserFactory

# Migrations of before do not change; that they run is seen whenever a test database is made.
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

BEFORE: list[tuple[str, str | None]] = [("cluster", "0011_ageing_weight"), ("lending", None)]
AFTER: list[tuple[str, str | None]] = [
    ("cluster", "0012_lending_is_an_app"),
    ("lending", "0002_own_tables"),
]
MODELS = (
    "InferenceCluster", "LendingEvent", "LoanOrder", "ReclaimOrder", "ReclaimedServer", "TrainedForecaster",
    "ForecasterTraining", "UsageForecast", "UsageSample",
)  # fmt: skip


def migrate(targets: list[tuple[str, str | None]]) -> Any:
    """Bring the database to ``targets``; returns the apps as they are there."""
    executor = MigrationExecutor(connection)
    executor.migrate(targets)
    ContentType.objects.clear_cache()
    known = [(app, name) for app, name in targets if name is not None]
    return MigrationExecutor(connection).loader.project_state(known).apps


@pytest.fixture
def before() -> Iterator[Any]:
    yield migrate(BEFORE)
    # Only tables that there are today are emptied.
    migrate(MigrationExecutor(connection).loader.graph.leaf_nodes())


def rows_of(apps: Any, app: str) -> dict[str, list[dict[str, Any]]]:
    """All rows of what moves, and the servers of each loan order."""
    found = {name: list(apps.get_model(app, name).objects.order_by("pk").values()) for name in MODELS}
    order = apps.get_model(app, "LoanOrder").objects.get()
    return {**found, "servers of the loan order": list(order.servers.order_by("pk").values("pk", "name"))}


def fill(apps: Any) -> None:
    """One row or two of everything that moves, as the cluster's models made them."""
    now = timezone.now()

    def make(model: str, /, **values: Any) -> Any:
        return apps.get_model("cluster", model).objects.create(**values)

    cluster = make("Cluster", name="default")
    account = apps.get_model("projects", "User").objects.create(username="inference-scheduler@serving")
    serving = make(
        "InferenceCluster", name="serving", cluster=cluster, account_id=account.pk, credential_digest="digest"
    )
    servers = [
        make(
            "Server", cluster=cluster, name=f"serving-{number}", address="127.0.0.1", port_first=1,
            port_last=9, inference_cluster=serving, lending_state="on_loan", whitelist="training",
        )
        for number in (1, 2)
    ]  # fmt: skip
    make("EnrolmentToken", cluster=cluster, inference_cluster=serving, digest="token", expires_at=now)
    make(
        "LendingEvent", inference_cluster=serving, kind="lent", message="Lent 2.", detail={"servers": ["a"]},
        at_home=0, on_loan=2, reclaiming=0,
    )  # fmt: skip
    lent = make(
        "LoanOrder", inference_cluster=serving, source="operator", state="done", finished_at=now,
        server_names=["serving-1", "serving-2"],
    )  # fmt: skip
    lent.servers.set(servers)
    asked = make(
        "ReclaimOrder", inference_cluster=serving, source="forecast", count=1, wanted_by=now,
        state="reclaiming", begun_at=now, choice={"jobs": ["j"]},
    )  # fmt: skip
    make("ReclaimedServer", reclaim_order=asked, server=servers[0], position=0, group="free", begun_at=now)
    learned = make(
        "TrainedForecaster", inference_cluster=serving, forecaster="ridge", content=b"\x00\x01", samples=300,
        learned_until=now, error=0.1, persistence_error=0.2,
    )  # fmt: skip
    make(
        "ForecasterTraining", inference_cluster=serving, forecaster="ridge", state="done", finished_at=now,
        trained=learned,
    )  # fmt: skip
    for age in (1, 2):
        ends_at = now - timedelta(minutes=5 * age)
        make("UsageSample", inference_cluster=serving, period_ends_at=ends_at, usage=0.5, on_loan_servers=2)
        make(
            "UsageForecast", inference_cluster=serving, period_ends_at=ends_at, usage=0.6, forecaster="ridge",
            trained=learned,
        )  # fmt: skip


def content(rows: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """With bytes for the views of memory that the database's driver answers."""
    return {
        name: [
            {key: bytes(value) if isinstance(value, memoryview) else value for key, value in row.items()}
            for row in found
        ]
        for name, found in rows.items()
    }


def test_rows_and_permissions_survive_the_move_and_its_return(before: Any) -> None:
    fill(before)
    user = UserFactory.create()
    user.user_permissions.add(
        Permission.objects.get(
            content_type__app_label="cluster",
            content_type__model="inferencecluster",
            codename="change_inferencecluster",
        )
    )
    kinds = set(ContentType.objects.filter(app_label="cluster").values_list("pk", flat=True))
    kept = content(rows_of(before, "cluster"))
    assert all(kept.values())

    after = migrate(AFTER)
    assert content(rows_of(after, "lending")) == kept
    tables = set(connection.introspection.table_names())
    assert {f"lending_{name.lower()}" for name in MODELS} | {"lending_loanorder_servers"} <= tables
    assert not {f"cluster_{name.lower()}" for name in MODELS} & tables
    serving = after.get_model("lending", "InferenceCluster").objects.get()
    assert serving.servers.count() == 2
    assert after.get_model("cluster", "EnrolmentToken").objects.get().inference_cluster == serving

    assert type(user).objects.get(pk=user.pk).has_perm("lending.change_inferencecluster")
    moved = set(ContentType.objects.filter(app_label="lending").values_list("pk", flat=True))
    assert len(moved) == len(MODELS)
    assert moved < kinds

    # Later rows go on where the earlier ones ended, and references are held to as before.
    later = serving.usage_samples.create(period_ends_at=timezone.now(), usage=0.7)
    assert later.pk > max(row["id"] for row in kept["UsageSample"])
    with pytest.raises(IntegrityError), transaction.atomic():
        after.get_model("cluster", "Server").objects.update(inference_cluster_id=serving.pk + 1)
    later.delete()

    assert content(rows_of(migrate(BEFORE), "cluster")) == kept
