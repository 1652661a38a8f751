"""Submitting and controlling jobs: accepted and refused requests, and their answers."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from cluster.models import Cluster
from projects.models import Quota
from scheduling.api import waiting
from scheduling.models import Job, JobEvent
from tests import factories as make
from tests.api.conftest import World
from tests.control_plane.simulated_time import BEGINS_AT


def submit(world: World, **changes: Any) -> Any:
    return world.client(world.colleague).post("/api/v1/jobs/", world.body(**changes), format="json")


def test_a_submission_is_answered_with_the_job(world: World) -> None:
    answer = submit(world, name="nightly", labels={"team": "search"}, deadline_seconds=600)
    job = answer.json()
    assert answer.status_code == 201
    assert (job["state"], job["service_class"], job["verdict"]["decision"]) == ("submitted", "slo", "pending")
    assert job["function"]["name"] == "classifier"
    assert job["termination"] == {"max_iterations": 100, "target": None}
    assert Job.objects.get(pk=job["id"]).owner == world.colleague


@pytest.mark.parametrize("changes", [{}, {"deadline_seconds": 600, "labels": {"team": "search"}}])
def test_submission_answer_equals_the_job_detail(world: World, changes: Any) -> None:
    client = world.client(world.colleague)
    answer = client.post("/api/v1/jobs/", world.body(**changes), format="json").json()
    assert answer == client.get(f"/api/v1/jobs/{answer['id']}/").json()


@pytest.mark.parametrize(
    ("changes", "service_class"),
    [
        ({}, "best_effort"),
        ({"deadline_seconds": 60}, "slo"),
        ({"deadline_seconds": 60, "service_class": "soft"}, "soft"),
    ],
)
def test_service_class_follows_from_the_deadline_by_default(
    world: World, changes: Any, service_class: str
) -> None:
    assert submit(world, **changes).json()["service_class"] == service_class


@pytest.mark.parametrize(
    "changes",
    [
        {"gpus": 4},
        {"num_gpus": 4},
        {"gpu-count": 4},
        {"worldSize": 4},
        {"num_workers": 2},
        {"hyperparameters": {"global_batch_size": 8, "world_size": 2}},
    ],
)
def test_a_number_of_gpus_is_refused_with_the_reason(world: World, changes: Any) -> None:
    answer = submit(world, **changes)
    assert answer.status_code == 400
    assert "Punctual decides how many GPUs" in answer.json()["detail"]


def test_hyperparameters_of_the_function_alone_pass_untouched(world: World) -> None:
    """`num_nodes` may count the nodes of a graph; `num_workers` is PyTorch's number of data loaders."""
    own = {"num_workers": 2, "num_nodes": 2708, "devices": "0,1", "model": {"world_size": 2}}
    answer = submit(world, hyperparameters={"global_batch_size": 8, **own})
    assert answer.status_code == 201
    assert answer.json()["hyperparameters"] == {"global_batch_size": 8, **own}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"deadline_seconds": 0}, "deadline_seconds"),
        ({"deadline_seconds": "soon"}, "deadline_seconds"),
        ({"deadline_at": "2001-01-01T00:00:00Z"}, "deadline_at"),
        ({"deadline_at": "2040-01-01T00:00:00Z"}, "deadline_at"),
        ({"deadline_at": "2030-01-01T00:00:00"}, "deadline_at"),
        ({"deadline_at": "tomorrow"}, "deadline_at"),
        ({"deadline_at": "2035-01-01T00:00:00Z", "deadline_seconds": 5}, "request"),
        ({"service_class": "slo"}, "service_class"),
        ({"service_class": "soft"}, "service_class"),
        ({"service_class": "best_effort", "deadline_seconds": 60}, "service_class"),
        ({"service_class": "urgent"}, "service_class"),
        ({"hyperparameters": {}}, "hyperparameters.global_batch_size"),
        ({"hyperparameters": {"global_batch_size": 0}}, "hyperparameters.global_batch_size"),
        ({"hyperparameters": {"global_batch_size": "8"}}, "hyperparameters.global_batch_size"),
        ({"hyperparameters": {"global_batch_size": 8, "a": [[[[[1]]]]]}}, "hyperparameters"),
        ({"hyperparameters": {"global_batch_size": 8, "a": "x" * 20_000}}, "hyperparameters"),
        ({"hyperparameters": {"global_batch_size": 8, "num_workers": 1000}}, "hyperparameters.num_workers"),
        (
            {"hyperparameters": {"global_batch_size": 8, "gradient_clip_norm": "one"}},
            "hyperparameters.gradient_clip_norm",
        ),
        (
            {"hyperparameters": {"global_batch_size": 8, "num_workers": 2, "data_workers": 4}},
            "hyperparameters.num_workers",
        ),
        ({"termination": {}}, "termination.max_iterations"),
        ({"termination": {"max_iterations": 1.5}}, "termination.max_iterations"),
        ({"termination": {"max_iterations": 5, "target": {"metric": "loss"}}}, "termination.target"),
        (
            {"termination": {"max_iterations": 5, "target": {"metric": "l", "at_least": 1, "at_most": 2}}},
            "termination.target",
        ),
        ({"function": "nothing"}, "function"),
        ({"function": "classifier@99"}, "function"),
        ({"function": None}, "function"),
        ({"project": "elsewhere"}, "project"),
        ({"labels": {"": "x"}}, "labels"),
        ({"labels": {"team": 5}}, "labels.team"),
        ({"labels": {f"l{n}": "x" for n in range(40)}}, "labels"),
        ({"data": [{"name": "a", "url": "file:///etc/passwd"}]}, "data.0.url"),
        (
            {"data": [{"name": "a", "url": "sftp://host/set"}]},
            "data.0.url",
        ),  # its library is not installed here
        ({"data": [{"name": "a", "path": "../x"}]}, "data.0.path"),
        ({"data": [{"name": "a"}]}, "data.0"),
        ({"data": [{"name": "a", "path": "/x"}, {"name": "a", "path": "/y"}]}, "data"),
        ({"seed": -1}, "seed"),
        ({"checkpoint_seconds": 0}, "checkpoint_seconds"),
        ({"protection": {"replicas": 0}}, "protection.replicas"),
        ({"protection": {"replicas": 5}}, "protection.replicas"),
        ({"protection": {"frequency": 0}}, "protection.frequency"),
        ({"protection": {"copies": 2}}, "protection.copies"),
        ({"protection": 2}, "protection"),
        ({"name": ""}, "name"),
        ({"dedline_seconds": 5}, "dedline_seconds"),
    ],
)
def test_a_wrong_field_is_named_and_nothing_is_stored(world: World, changes: Any, field: str) -> None:
    before = Job.objects.count()
    answer = submit(world, **changes)
    problem = answer.json()
    assert answer.status_code == 400
    assert field in problem["errors"], problem
    assert Job.objects.count() == before


@pytest.mark.parametrize("reference", ["classifier", "classifier@1", "id", "digest", "text id"])
def test_a_function_can_be_named_in_every_way(world: World, reference: str) -> None:
    spelled: dict[str, Any] = {
        "id": world.version.function_id,
        "text id": str(world.version.function_id),
        "digest": f"sha256:{world.version.bundle_id}",
    }
    answer = submit(world, function=spelled.get(reference, reference))
    assert answer.json()["function"]["id"] == world.version.function_id


def test_the_project_may_be_left_out_by_members_of_one(world: World) -> None:
    body = world.body()
    del body["project"]
    client = world.client(world.colleague)
    assert client.post("/api/v1/jobs/", body, format="json").json()["project"] == "vision"
    make.MembershipFactory.create(project=make.ProjectFactory.create(name="second"), user=world.colleague)
    refused = client.post("/api/v1/jobs/", body, format="json")
    assert "second, vision" in refused.json()["errors"]["project"][0]


def test_full_project_gets_a_quota_error(world: World) -> None:
    Quota.objects.create(project=world.project, active_jobs=1)
    answer = submit(world)
    assert (answer.status_code, answer.json()["code"]) == (429, "quota_exceeded")


def test_too_many_submissions_are_throttled(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("projects.api.throttling.Throttle.THROTTLE_RATES", {"submissions": "2/min"})
    statuses = [submit(world).status_code for _ in range(3)]
    assert statuses == [201, 201, 429]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("state=running", True),
        ("state=completed&state=running", True),
        ("state=completed", False),
        ("project=vision", True),
        ("owner=owner", True),
        ("owner=colleague", False),
        ("function=classifier", True),
        ("service_class=best_effort", True),
        ("promised=true", False),
        ("at_risk=false", True),
        ("label=team:search", True),
        ("label=team:other", False),
        ("search=NIGHT", True),
        ("submitted_after=2100-01-01T00:00:00Z", False),
        ("submitted_before=2100-01-01T00:00:00Z", True),
        ("deadline_before=2100-01-01T00:00:00Z", False),
    ],
)
def test_the_list_can_be_filtered(world: World, query: str, found: bool) -> None:
    Job.objects.filter(pk=world.job.pk).update(name="nightly", labels={"team": "search", "x": "y"})
    rows = world.client(world.viewer).get(f"/api/v1/jobs/?{query}").json()["results"]
    assert [row["id"] for row in rows] == ([world.job.pk] if found else [])


@pytest.mark.parametrize(
    ("query", "right"),
    [
        ("state=flying", "suspended"),
        ("stat=running", "state"),
        ("label=team", "label=key:value"),
        ("submitted_after=today", "2030"),
        ("promised=perhaps", ""),
    ],
)
def test_an_unusable_filter_is_an_error_that_says_what_is_right(world: World, query: str, right: str) -> None:
    answer = world.client(world.viewer).get(f"/api/v1/jobs/?{query}")
    assert (answer.status_code, right in answer.json()["detail"]) == (400, True)


def test_a_running_job_shows_its_gpus_and_its_plan(world: World) -> None:
    now = timezone.now()
    world.job.deadline_at = now + timedelta(seconds=100)
    world.job.plan = make.stored_plan([(0, 40, 2), (40, 80, 4)], 80, now)
    world.job.iterations_done = 250
    world.job.save()
    job = world.client(world.viewer).get(f"/api/v1/jobs/{world.job.pk}/").json()
    assert (job["gpus"], job["gpu_kind"], job["emulated"], job["progress"]) == (
        2,
        "emulated-a100",
        True,
        0.25,
    )
    assert job["slack_seconds"] == pytest.approx(20, abs=0.01)
    plan = world.client(world.viewer).get(f"/api/v1/jobs/{world.job.pk}/plan/").json()
    assert [piece["gpus"] for piece in plan["planned"]] == [2, 4]
    assert [(piece["gpus"], piece["end"], piece["servers"]) for piece in plan["actual"]] == [
        (2, None, ["node-a"])
    ]


def test_a_verdict_is_shown_with_its_offer(world: World) -> None:
    world.job.verdict = {
        "decision": "declined",
        "reason_code": "capacity",
        "reason": f"would make job {world.foreign_job.pk} late",
        "minimum_satisfactory_share": [],
        "offer": {"deadline_at": "2030-01-01T00:00:00Z", "valid_until": "2029-12-31T23:58:00+00:00"},
    }
    world.job.save()
    address = f"/api/v1/jobs/{world.job.pk}/"
    verdict = world.client(world.viewer).get(address).json()["verdict"]
    assert verdict["offer"]["valid_until"] == "2029-12-31T23:58:00Z"
    assert verdict["reason"] == "would make job of another project late"
    assert world.foreign_job.pk in world.client(world.operator).get(address).json()["verdict"]["reason"]


def test_a_clone_keeps_everything_that_is_not_changed(world: World) -> None:
    submitted = datetime(2026, 1, 1, tzinfo=UTC)
    Job.objects.filter(pk=world.job.pk).update(
        service_class="soft",
        submitted_at=submitted,
        deadline_at=submitted + timedelta(hours=1),
        labels={"a": "b"},
    )
    client = world.client(world.colleague)
    address = f"/api/v1/jobs/{world.job.pk}/clone/"
    clone = client.post(address, {"hyperparameters": {"learning_rate": 0.5}, "seed": 7}, format="json").json()
    assert clone["hyperparameters"] == {"global_batch_size": 64, "learning_rate": 0.5}
    assert (clone["seed"], clone["labels"], clone["service_class"]) == (7, {"a": "b"}, "soft")
    assert clone["resubmission_of"] == world.job.pk
    left = datetime.fromisoformat(clone["deadline_at"]) - datetime.fromisoformat(clone["submitted_at"])
    assert left.total_seconds() == pytest.approx(3600, abs=5)
    assert client.post(address, {"service_class": "best_effort"}, format="json").json()["deadline_at"] is None
    assert client.post(address, {"gpus": 3}, format="json").status_code == 400


def test_protection_is_kept_and_a_clone_may_change_part_of_it(world: World) -> None:
    job = submit(world, protection={"replicas": 2, "frequency": 10}).json()
    assert job["protection"] == {"replicas": 2, "frequency": 10}
    client = world.client(world.colleague)
    address = f"/api/v1/jobs/{job['id']}/clone/"
    assert client.post(address, {}, format="json").json()["protection"] == job["protection"]
    changed = client.post(address, {"protection": {"replicas": 3}}, format="json").json()
    assert changed["protection"] == {"replicas": 3, "frequency": 10}
    assert submit(world).json()["protection"] == {}


def test_a_deadline_can_be_given_up(world: World) -> None:
    Job.objects.filter(pk=world.job.pk).update(
        service_class="soft", deadline_at=timezone.now() + timedelta(hours=1)
    )
    client = world.client(world.colleague)
    answer = client.post(
        f"/api/v1/jobs/{world.job.pk}/deadline/", {"deadline_at": None}, format="json"
    ).json()
    assert (answer["changed"], answer["job"]["service_class"], answer["job"]["deadline_at"]) == (
        True,
        "best_effort",
        None,
    )
    nothing = client.post(f"/api/v1/jobs/{world.job.pk}/deadline/", {}, format="json")
    assert nothing.status_code == 400


def test_accepted_offer_creates_a_successor_job(world: World) -> None:
    declined = make.JobFactory.create(
        project=world.project, owner=world.owner, function_version=world.version, state="declined",
        service_class="slo", deadline_at=timezone.now() + timedelta(minutes=1),
        verdict={"decision": "declined", "reason_code": "capacity", "reason": "Full.", "decision_id": 7},
    )  # fmt: skip
    plan = make.stored_plan([(0, 60, 0), (60, 120, 2)], 120)
    make.OfferFactory.create(job=declined, plan=plan)
    client = world.client(world.colleague)
    answer = client.post(f"/api/v1/jobs/{declined.pk}/accept-offer/", format="json")
    successor = answer.json()
    assert answer.status_code == 201
    assert (successor["resubmission_of"], successor["promised"]) == (declined.pk, True)
    verdict = successor["verdict"]
    assert (verdict["reason_code"], verdict["decision_id"]) == ("offer_accepted", None), "no decline's"
    assert [piece["gpus"] for piece in verdict["minimum_satisfactory_share"]] == [0, 2]
    for view in (successor, verdict):
        assert datetime.fromisoformat(view["planned_start_at"]).timestamp() == pytest.approx(plan["start"][1])
    assert client.post(f"/api/v1/jobs/{declined.pk}/accept-offer/", format="json").status_code == 409


def test_members_who_may_steer_a_job_can_decline_its_offer(world: World) -> None:
    declined = make.JobFactory.create(
        project=world.project, owner=world.owner, function_version=world.version, state="declined",
        service_class="slo", deadline_at=timezone.now() + timedelta(minutes=1),
        verdict={"decision": "declined", "reason_code": "capacity", "reason": "Full."},
    )  # fmt: skip
    plan = make.stored_plan([(0, 60, 2)], 60)
    offer = make.OfferFactory.create(job=declined, plan=plan)
    path = f"/api/v1/jobs/{declined.pk}/decline-offer/"
    version = Cluster.objects.get(pk=declined.cluster_id).planning_version
    for who in (world.owner, world.colleague):
        answer = world.client(who).post(path, format="json")
        assert (answer.status_code, answer.json()["state"]) == (200, "declined")
    offer.refresh_from_db()
    assert offer.state == "declined"
    assert Cluster.objects.get(pk=declined.cluster_id).planning_version == version + 1
    (event,) = JobEvent.objects.filter(job=declined, kind="offer_declined")
    assert (event.actor, world.owner.username in event.message) == (world.owner.username, True)
    taken = world.client(world.owner).post(f"/api/v1/jobs/{declined.pk}/accept-offer/", format="json")
    assert (taken.status_code, "was declined" in taken.json()["detail"]) == (409, True)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"state": "accepted"}, "accepted already"),
        ({"state": "withdrawn"}, "has expired"),
        ({"valid_until": BEGINS_AT - timedelta(seconds=1)}, "has expired"),
        (None, "has no offer"),
    ],
)
def test_an_offer_that_holds_nothing_cannot_be_let_go_of(
    world: World, changes: dict[str, Any] | None, problem: str
) -> None:
    declined = make.JobFactory.create(
        project=world.project, owner=world.owner, function_version=world.version, state="declined"
    )
    if changes is not None:
        plan = make.stored_plan([(0, 60, 2)], 60)
        make.OfferFactory.create(job=declined, plan=plan, **changes)
    answer = world.client(world.owner).post(f"/api/v1/jobs/{declined.pk}/decline-offer/", format="json")
    assert (answer.status_code, problem in answer.json()["detail"]) == (409, True)
    assert not JobEvent.objects.filter(job=declined, kind="offer_declined").exists()


def test_an_unknown_curve_makes_what_if_pending(world: World) -> None:
    before = Job.objects.count()
    answer = world.client(world.colleague).post(
        "/api/v1/what-if/", world.body(deadline_seconds=60), format="json"
    )
    assert (answer.json()["decision"], answer.json()["needs_profiling"]) == ("pending", True)
    assert Job.objects.count() == before


@pytest.mark.parametrize("wait", ["-1", "31", "soon", "nan"])
def test_a_wait_is_between_0_and_30_seconds(world: World, wait: str) -> None:
    answer = world.client(world.viewer).get(f"/api/v1/jobs/{world.job.pk}/?wait={wait}")
    assert (answer.status_code, list(answer.json()["errors"])) == (400, ["wait"])


def test_only_two_requests_wait_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = threading.Event()
    arrived = threading.Semaphore(0)

    def held(job_id: str, seconds: float) -> None:
        arrived.release()
        verdict.wait(60)

    monkeypatch.setattr(waiting, "wait_for_verdict", held)
    waiters = [threading.Thread(target=waiting.hold_until_verdict, args=("abc", 30)) for _ in range(2)]
    for waiter in waiters:
        waiter.start()
        assert arrived.acquire(timeout=60)
    assert waiting.hold_until_verdict("abc", 30) is False
    verdict.set()
    for waiter in waiters:
        waiter.join(60)
    assert waiting.hold_until_verdict("abc", 30) is True


def test_wait_returns_the_verdict_as_soon_as_it_exists(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def decide(job_id: str, seconds: float) -> None:
        verdict = {"decision": "admitted", "reason_code": "fits", "reason": "It fits."}
        Job.objects.filter(pk=job_id).update(state="admitted", decided_at=timezone.now(), verdict=verdict)

    monkeypatch.setattr(waiting, "wait_for_verdict", decide)
    client = world.client(world.colleague)
    key: Any = {"HTTP_IDEMPOTENCY_KEY": "k"}
    answer = client.post("/api/v1/jobs/?wait=5", world.body(), format="json", **key)
    assert answer.json()["verdict"]["reason_code"] == "fits"
    again = client.post("/api/v1/jobs/?wait=5", world.body(), format="json", **key)
    assert again.json() == answer.json()


def test_job_warns_of_nonfinite_loss(world: World) -> None:
    Job.objects.filter(pk=world.job.pk).update(nonfinite={"since": 21})
    answer = world.client(world.owner).get(f"/api/v1/jobs/{world.job.pk}/").json()
    assert answer["warning"] == "The loss is NaN or infinite since iteration 21."


@pytest.mark.parametrize(
    "written", ["2027-01-31t14:00:00z", "2027-01-31T15:00:00+01:00", "2027-01-31t14:00:00.0Z"]
)
def test_a_time_is_read_in_every_spelling_of_rfc_3339(world: World, written: str) -> None:
    assert submit(world, deadline_at=written).json()["deadline_at"] == "2027-01-31T14:00:00Z"
    listed = world.client(world.viewer).get("/api/v1/jobs/", {"deadline_before": written})
    assert listed.status_code == 200
