"""Studies over REST, as an operator's script uses them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rest_framework.test import APIClient

from cluster.choices import WorkState
from projects.models import User
from simulation.models import SimulationRun, SimulationStudy
from simulation.policies import POLICIES
from simulation.selectors.studies import COMPARISON_FIGURES
from simulation.services.comparing import refresh_comparison
from simulation.services.executing import execute_run
from tests.factories import SimulationRunFactory, SimulationStudyFactory

ADDRESS = "/api/v1/simulations/"
BODY = {
    "trace": "elasticflow",
    "policies": ["punctual", "edf"],
    "servers": [4],
    "gpus_per_server": 4,
    "limit_jobs": 10,
}


@pytest.fixture
def client(operator: User, store: Path) -> APIClient:
    api_client = APIClient()
    api_client.force_authenticate(operator)
    return api_client


def refused(client: APIClient, **changes: Any) -> dict[str, Any]:
    """Return the problem document that answers this study."""
    answer = client.post(ADDRESS, {**BODY, **changes}, format="json")
    assert answer.status_code == 400, answer.json()
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert not SimulationStudy.objects.exists()
    problem: dict[str, Any] = answer.json()
    return problem


def test_choices_are_listed(client: APIClient) -> None:
    answer = client.get(f"{ADDRESS}choices/").json()
    assert set(answer["policies"]) == set(POLICIES)
    assert answer["policies"][0] == "punctual"
    assert {"elasticflow", "itp", "philly"} <= {
        trace["name"] for trace in answer["traces"] if trace["available"]
    }
    assert answer["live"] is None
    assert answer["limits"]["runs"] == 24


@pytest.mark.django_db(transaction=True)
def test_a_study_goes_from_request_to_comparison_and_files(client: APIClient) -> None:
    study = client.post(ADDRESS, BODY, format="json").json()
    assert [run["state"] for run in study["runs"]] == ["queued", "queued"]
    address = f"{ADDRESS}{study['id']}/"
    assert client.get(address).json()["comparison"] is None
    for run in study["runs"]:
        execute_run(run["id"])
    refresh_comparison(study["id"])
    shown = client.get(address).json()
    assert [run["progress"] for run in shown["runs"]] == [1.0, 1.0]
    assert shown["runs"][0]["summary"]["slo_jobs"] == 10
    assert set(shown["comparison"]["figures"]) == set(COMPARISON_FIGURES)
    assert client.get(f"{address}?comparison=false").json()["comparison"] is None
    parquet = client.get(f"{address}runs/{study['runs'][0]['id']}/results/jobs.parquet/")
    assert parquet.getvalue()[:4] == b"PAR1"
    report = client.get(f"{address}report/")
    assert report.headers["Content-Disposition"].startswith("attachment")
    assert b"Deadline satisfactory ratio" in report.content
    assert client.delete(address).status_code == 204
    assert client.get(address).status_code == 404


@pytest.mark.django_db(transaction=True)
def test_the_same_request_gives_the_same_figures(client: APIClient) -> None:
    summaries = []
    for _ in range(2):
        study = client.post(ADDRESS, {**BODY, "policies": ["punctual"], "seed": 7}, format="json").json()
        execute_run(study["runs"][0]["id"])
        summary = SimulationRun.objects.get(pk=study["runs"][0]["id"]).summary or {}
        measured = (
            "wall_seconds",
            "setup_seconds",
            "peak_memory_bytes",
            "decision_ms_p50",
            "decision_ms_p99",
        )
        summaries.append({name: value for name, value in summary.items() if name not in measured})
    assert summaries[0] == summaries[1]


def test_a_repeated_request_starts_one_study(client: APIClient) -> None:
    client.credentials(HTTP_IDEMPOTENCY_KEY="once")
    first = client.post(ADDRESS, BODY, format="json")
    again = client.post(ADDRESS, BODY, format="json")
    assert first.status_code == again.status_code == 201
    assert again.json()["id"] == first.json()["id"]
    assert SimulationStudy.objects.count() == 1


def test_one_run_of_each_policy_is_made_for_each_size(client: APIClient) -> None:
    body = {**BODY, "policies": ["punctual", "edf", "edf"], "servers": [4, 6, 4]}
    runs = client.post(ADDRESS, body, format="json").json()["runs"]
    assert [(run["policy"], run["servers"]) for run in runs] == [
        ("punctual", 4),
        ("edf", 4),
        ("punctual", 6),
        ("edf", 6),
    ]


def test_an_unknown_trace_is_answered_with_those_there_are(client: APIClient) -> None:
    problem = refused(client, trace="marmalade")
    assert "marmalade" in problem["errors"]["trace"][0]
    assert "elasticflow" in problem["errors"]["trace"][0]


@pytest.mark.parametrize("path", ["/etc/passwd", "../../etc/passwd", "elasticflow:jobs=100000000"])
def test_a_trace_is_a_name_and_never_a_path_or_more(client: APIClient, path: str) -> None:
    assert "trace" in refused(client, trace=path)["errors"]


def test_an_unknown_policy_is_answered_with_those_there_are(client: APIClient) -> None:
    message = refused(client, policies=["punctual", "horoscope"])["errors"]["policies"][0]
    assert "horoscope" in message
    assert "punctual" in message


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("servers", {"servers": [10**6]}),
        ("servers", {"servers": [0]}),
        ("servers", {"servers": ["4"]}),
        ("servers", {"servers": []}),
        ("policies", {"policies": []}),
        ("policies", {"policies": ["edf"], "servers": list(range(1, 40))}),
        ("gpus_per_server", {"gpus_per_server": None}),
        ("gpus_per_server", {"gpus_per_server": 65}),
        ("reserve_servers", {"reserve_servers": 4}),
        ("slot_seconds", {"slot_seconds": 0}),
        ("pauses", {"pauses": "long"}),
        ("best_effort_share", {"best_effort_share": 1.5}),
        ("limit_jobs", {"limit_jobs": 0}),
        ("slots", {"slots": 60}),
        ("trace", {"trace": ""}),
        ("trace", {"source": "live"}),
    ],
)
def test_invalid_study_is_refused_by_field(client: APIClient, field: str, changes: dict[str, Any]) -> None:
    errors = refused(client, **changes)["errors"]
    assert any(name.split(".")[0] == field for name in errors), errors


def test_a_trace_longer_than_is_allowed_has_to_be_limited(client: APIClient, settings: Any) -> None:
    settings.SIMULATION_LIMITS = {**settings.SIMULATION_LIMITS, "jobs": 100}
    assert "limit_jobs" in refused(client, limit_jobs=None)["errors"]
    assert client.post(ADDRESS, {**BODY, "limit_jobs": 100}, format="json").status_code == 201


def test_the_queue_has_an_end(client: APIClient, settings: Any) -> None:
    settings.SIMULATION_LIMITS = {**settings.SIMULATION_LIMITS, "waiting_runs": 3}
    assert client.post(ADDRESS, BODY, format="json").status_code == 201
    answer = client.post(ADDRESS, BODY, format="json")
    assert answer.status_code == 429
    assert "2 runs are unfinished" in answer.json()["detail"]


def test_published_cluster_size_is_the_default(client: APIClient) -> None:
    known = next(
        (
            trace
            for trace in client.get(f"{ADDRESS}choices/").json()["traces"]
            if trace["available"] and trace["servers"]
        ),
        None,
    )
    if known is None:
        pytest.skip("no public trace is on this machine")
    study = client.post(ADDRESS, {"trace": known["name"], "policies": ["edf"]}, format="json").json()
    assert [run["servers"] for run in study["runs"]] == [known["servers"]]
    assert study["gpus_per_server"] == known["gpus_per_server"]


def test_runs_are_cancelled_singly_or_by_study(client: APIClient) -> None:
    study = client.post(ADDRESS, BODY, format="json").json()
    address = f"{ADDRESS}{study['id']}/"
    first, second = (run["id"] for run in study["runs"])
    assert client.post(f"{address}runs/{first}/cancel/").json()["state"] == WorkState.CANCELLED
    assert client.post(f"{address}runs/{first}/cancel/").status_code == 409
    assert SimulationRun.objects.get(pk=second).state == WorkState.QUEUED
    assert client.post(f"{address}cancel/").status_code == 200
    assert client.post(f"{address}cancel/").status_code == 409


def test_results_that_are_not_there_are_not_found(client: APIClient) -> None:
    study = SimulationStudyFactory.create()
    run = SimulationRunFactory.create(study=study)
    elsewhere = SimulationRunFactory.create()
    address = f"{ADDRESS}{study.pk}/"
    assert client.get(f"{address}report/").status_code == 404
    assert client.get(f"{address}runs/{run.pk}/results/jobs.parquet/").status_code == 404
    assert client.get(f"{address}runs/{elsewhere.pk}/results/jobs.parquet/").status_code == 404
    done = SimulationRunFactory.create(study=study, policy="edf", state="done")
    assert client.get(f"{address}runs/{done.pk}/results/jobs.parquet/").status_code == 404
    assert client.get(f"{address}runs/{done.pk}/results/secrets/").status_code == 404


def test_the_list_asks_no_more_queries_the_longer_it_gets(
    client: APIClient, django_assert_num_queries: Any
) -> None:
    for _ in range(6):
        SimulationRunFactory.create()
    with django_assert_num_queries(4):  # the page, its runs, and the savepoint around them
        assert len(client.get(ADDRESS).json()["results"]) == 6
