"""The inference scheduler's API: a role with its own credential, and idempotent orders."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from cluster.models import EnrolmentToken, Server
from lending.models import LoanOrder, UsageSample
from tests import factories as make
from tests.api.conftest import World

ROOT = "/api/v1/inference-clusters/"


@pytest.fixture
def scheduler(world: World) -> APIClient:
    """The inference scheduler of `serving`."""
    return bearing("ps_credential_of_serving")


def bearing(credential: str) -> APIClient:
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {credential}")
    return client


def post(client: APIClient, path: str, body: Any) -> Any:
    return client.post(f"{ROOT}{path}", body, format="json")


def test_a_scheduler_offers_servers_and_asks_them_back(world: World, scheduler: APIClient) -> None:
    order = {"id": str(uuid4()), "servers": ["serving-2"]}
    first = post(scheduler, "serving/loan-orders/", order)
    again = post(scheduler, "serving/loan-orders/", order)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    assert (first.json()["state"], first.json()["source"]) == ("pending", "scheduler")
    wish = {"id": str(uuid4()), "count": 1, "wanted_by": (timezone.now() + timedelta(minutes=5)).isoformat()}
    first = post(scheduler, "serving/reclaim-orders/", wish)
    again = post(scheduler, "serving/reclaim-orders/", wish)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["servers"] == []
    other = post(scheduler, "serving/reclaim-orders/", {**wish, "count": 2})
    assert (other.status_code, other.json()["code"]) == (409, "order_id_reused")


def test_an_offer_of_unknown_servers_is_refused_whole(world: World, scheduler: APIClient) -> None:
    answer = post(scheduler, "serving/loan-orders/", {"id": str(uuid4()), "servers": ["serving-2", "node-a"]})
    assert answer.status_code == 400
    assert "node-a" in answer.json()["errors"]["servers"][0]
    assert not LoanOrder.objects.filter(state="pending").exists()


def test_inference_scheduler_sees_only_its_own_cluster(world: World, scheduler: APIClient) -> None:
    make.InferenceClusterFactory.create(name="elsewhere")
    assert [row["name"] for row in scheduler.get(ROOT).json()["results"]] == ["serving"]
    assert scheduler.get(f"{ROOT}serving/").json()["standing"]["at_home"] == 2
    assert scheduler.get(f"{ROOT}elsewhere/").status_code == 404
    assert post(scheduler, "elsewhere/loan-orders/", {"id": str(uuid4()), "servers": []}).status_code == 404


def test_a_schedulers_credential_opens_nothing_else(world: World, scheduler: APIClient) -> None:
    for path in ("jobs/", "projects/", "servers/", "me/"):
        assert scheduler.get(f"/api/v1/{path}").status_code == 401
    for path, body in (("", {"name": "mine"}), ("serving/credential/", {}), ("serving/trainings/", {})):
        assert post(scheduler, path, body).status_code == 403
    assert scheduler.patch(f"{ROOT}serving/", {"lending": False}, format="json").status_code == 403


def test_inference_scheduler_sees_preemption_counts_but_no_job_names(
    world: World, scheduler: APIClient
) -> None:
    path = f"{ROOT}serving/reclaim-orders/{world.reclaim_order.pk}/"
    shown = scheduler.get(path)
    assert (shown.json()["preempted_jobs"], shown.json()["held_back_jobs"]) == (1, 2)
    assert "somebodysjob" not in shown.content.decode()
    assert "somebodysjob" in world.client(world.operator).get(path).content.decode()


def test_usage_may_be_reported_again(world: World, scheduler: APIClient) -> None:
    end = timezone.now().replace(microsecond=0)
    ends = [(end - timedelta(minutes=5 * age)).isoformat() for age in range(3)]
    samples = [{"period_ends_at": period_end, "usage": 0.4} for period_end in ends]
    assert post(scheduler, "serving/usage/", {"samples": samples}).json() == {"stored": 3, "new": 3}
    samples[0]["usage"] = 0.5
    assert post(scheduler, "serving/usage/", {"samples": samples}).json() == {"stored": 3, "new": 0}
    assert UsageSample.objects.count() == 3
    shown = scheduler.get(f"{ROOT}serving/usage/").json()["results"]
    assert [sample["usage"] for sample in shown] == [0.5, 0.4, 0.4]
    standing = scheduler.get(f"{ROOT}serving/").json()["standing"]
    assert (standing["usage"]["usage"], standing["decision"]["need"]) == (0.5, 1)


def test_a_sample_keeps_where_it_is_from(world: World, scheduler: APIClient) -> None:
    end = timezone.now().replace(microsecond=0)
    sourced = {"period_ends_at": end.isoformat(), "usage": 0.4, "source": "emulated: daily curve, seed 0"}
    unsourced = {"period_ends_at": (end - timedelta(minutes=5)).isoformat(), "usage": 0.3}
    assert post(scheduler, "serving/usage/", {"samples": [sourced, unsourced]}).status_code == 200
    shown = scheduler.get(f"{ROOT}serving/usage/").json()["results"]
    assert [sample["source"] for sample in shown] == ["emulated: daily curve, seed 0", "measured"]
    assert scheduler.get(f"{ROOT}serving/").json()["standing"]["usage"]["source"] == sourced["source"]
    del sourced["source"]
    assert post(scheduler, "serving/usage/", {"samples": [sourced]}).json() == {"stored": 1, "new": 0}
    assert UsageSample.objects.filter(source="measured").count() == 2, "reported again, it is another sample"


@pytest.mark.parametrize(
    "sample",
    [
        {"period_ends_at": "2999-01-01T00:00:00Z", "usage": 0.5},
        {"period_ends_at": "0001-01-01T00:00:00Z", "usage": 0.5},
        {"period_ends_at": "2030-01-01T00:00:00", "usage": 0.5},
        {"period_ends_at": "2020-01-01T00:00:00Z", "usage": 1.5},
        {"period_ends_at": timezone.now().isoformat(), "usage": 0.5, "source": "x" * 201},
        {"period_ends_at": timezone.now().isoformat(), "usage": 0.5, "source": ""},
    ],
)
def test_senseless_usage_is_refused(world: World, scheduler: APIClient, sample: dict[str, Any]) -> None:
    assert post(scheduler, "serving/usage/", {"samples": [sample]}).status_code == 400


def test_a_returned_server_is_confirmed(world: World, scheduler: APIClient) -> None:
    path = f"serving/reclaim-orders/{world.reclaim_order.pk}/confirm/"
    for _ in range(2):
        answer = post(scheduler, path, {"servers": ["serving-1"]})
        assert (answer.status_code, answer.json()["state"]) == (200, "confirmed")
    assert post(scheduler, path, {"servers": ["serving-2"]}).status_code == 400


def test_a_new_credential_ends_the_old_one(world: World, scheduler: APIClient) -> None:
    answer = world.client(world.operator).post(f"{ROOT}serving/credential/", {}, format="json")
    assert scheduler.get(f"{ROOT}serving/").status_code == 401
    assert bearing(answer.json()["credential"]).get(f"{ROOT}serving/").status_code == 200


def test_an_operator_makes_a_cluster_and_enrols_agents_for_it(world: World) -> None:
    operator = world.client(world.operator)
    made = operator.post(ROOT, {"name": "chat", "headroom_fraction": 0.1, "lending": False}, format="json")
    assert made.status_code == 201
    assert (made.json()["headroom_fraction"], made.json()["standing"]["servers"]) == (0.1, 0)
    assert operator.post(ROOT, {"name": "chat"}, format="json").status_code == 409
    answer = operator.post("/api/v1/enrolment-tokens/", {"inference_cluster": "chat"}, format="json")
    assert answer.json()["inference_cluster"] == "chat"
    assert EnrolmentToken.objects.get().inference_cluster.name == "chat"  # type: ignore[union-attr]
    refused = operator.post("/api/v1/enrolment-tokens/", {"inference_cluster": "none"}, format="json")
    assert refused.status_code == 400
    assert "inference_cluster" in refused.json()["errors"]


def test_nothing_is_offered_while_lending_is_off(world: World, scheduler: APIClient) -> None:
    answer = world.client(world.operator).patch(f"{ROOT}serving/", {"lending": False}, format="json")
    assert answer.json()["lending"] is False
    refused = post(scheduler, "serving/loan-orders/", {"id": str(uuid4()), "servers": ["serving-2"]})
    assert (refused.status_code, refused.json()["code"]) == (409, "not_lent")


def test_a_training_is_started_and_cancelled_by_operators(world: World) -> None:
    operator = world.client(world.operator)
    busy = operator.post(f"{ROOT}serving/trainings/", {}, format="json")
    assert busy.status_code == 409, "one is queued already"
    cancelled = operator.post(f"{ROOT}serving/trainings/{world.training.pk}/cancel/", {}, format="json")
    assert cancelled.json()["state"] == "cancelled"
    assert operator.post(f"{ROOT}serving/trainings/", {}, format="json").json()["state"] == "queued"


def test_server_list_shows_home_and_whitelist(world: World) -> None:
    shown = world.client(world.viewer).get("/api/v1/servers/").json()["results"]
    homes = {row["name"]: (row["home"], row["whitelist"]) for row in shown}
    assert homes == {
        "node-a": ("training", "training"),
        "serving-1": ("inference", "inference"),
        "serving-2": ("inference", "inference"),
    }
    assert Server.objects.count() == 3
