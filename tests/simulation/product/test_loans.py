"""Studies with loans: accepted and refused options, the runs of a study, and notes on loans."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from rest_framework.test import APIClient

from projects.models import User
from simulation.models import SimulationRun, SimulationStudy
from simulation.reports.parquet import read_parquet
from simulation.selectors.studies import report_open, study_get
from simulation.services.comparing import refresh_comparison
from simulation.services.executing import execute_run
from tests.factories import SimulationStudyFactory
from tests.simulation.product.conftest import runs_of

ADDRESS = "/api/v1/simulations/"
BODY: dict[str, Any] = {
    "trace": "elasticflow",
    "policies": ["punctual"],
    "servers": [2],
    "inference_servers": [0, 8],
    "gpus_per_server": 4,
    "limit_jobs": 20,
    "best_effort_share": 0.5,
}
Start = Callable[..., SimulationStudy]


@pytest.fixture
def client(operator: User, store: Path) -> APIClient:
    api_client = APIClient()
    api_client.force_authenticate(operator)
    return api_client


def started(client: APIClient, **changes: Any) -> dict[str, Any]:
    answer = client.post(ADDRESS, {**BODY, **changes}, format="json")
    assert answer.status_code == 201, answer.json()
    study: dict[str, Any] = answer.json()
    return study


def refused(client: APIClient, **changes: Any) -> dict[str, list[str]]:
    """Return the errors of this study by field."""
    answer = client.post(ADDRESS, {**BODY, **changes}, format="json")
    assert answer.status_code == 400, answer.json()
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert not SimulationStudy.objects.exists()
    errors: dict[str, list[str]] = answer.json()["errors"]
    return errors


@pytest.mark.django_db(transaction=True)
def test_runs_with_and_without_loans_stand_side_by_side(client: APIClient, store: Path) -> None:
    study = started(client)
    assert [(run["servers"], run["inference_servers"]) for run in study["runs"]] == [(2, 0), (2, 8)]
    for run in study["runs"]:
        assert execute_run(run["id"]), SimulationRun.objects.get(pk=run["id"]).error
    refresh_comparison(study["id"])
    shown = client.get(f"{ADDRESS}{study['id']}/").json()
    alone, beside = (run["summary"] for run in shown["runs"])
    assert (alone["servers_on_loan_max"], beside["servers_on_loan_max"] > 0) == (0, True)
    assert beside["best_effort_mean_jct_seconds"] < alone["best_effort_mean_jct_seconds"]
    assert alone["admitted_late"] == beside["admitted_late"] == 0
    assert [run["label"] for run in shown["comparison"]["runs"]] == [
        "punctual, 2 servers",
        "punctual, 2 + 8 servers",
    ]
    assert shown["runs"][1]["results"][3:] == ["loans.parquet", "reclaims.parquet"]
    loans = read_parquet(store / SimulationRun.objects.get(pk=study["runs"][1]["id"]).results_key).loans
    assert loans is not None
    assert loans.servers == 8
    for run, status in zip(study["runs"], (404, 200), strict=True):
        answer = client.get(f"{ADDRESS}{study['id']}/runs/{run['id']}/results/loans.parquet/")
        assert answer.status_code == status
    assert b"Servers on loan" in report_open(study_get(study["id"]))


@pytest.mark.parametrize(
    ("field", "changes", "complaint"),
    [
        ("inference_servers", {"inference_servers": [-1]}, "0"),
        ("inference_servers", {"inference_servers": ["8"]}, "integer"),
        ("inference_servers", {"inference_servers": [10**6]}, "GPUs"),
        ("inference_servers", {"policies": ["edf", "tiresias"]}, "punctual, lyra"),
        ("inference_usage", {"inference_usage": "marmalade"}, "daily"),
        ("inference_usage", {"inference_usage": "/etc/passwd"}, "daily"),
        ("inference_usage", {"inference_usage": "daily:days=1"}, "daily"),
        ("inference_usage", {"inference_usage": "measured"}, "source live"),
        ("inference_gpu_type", {"inference_gpu_type": "abacus"}, "T4"),
        ("reclaim", {"reclaim": "politely"}, "improved"),
        ("headroom", {"headroom": 1.5}, "1"),
        ("forecaster", {"forecaster": "oracle"}, "persistence"),
        ("forecaster", {"forecaster": "lstm"}, "command line"),
    ],
)
@pytest.mark.django_db
def test_invalid_loan_options_are_refused_by_field(
    client: APIClient, field: str, changes: dict[str, Any], complaint: str
) -> None:
    errors = refused(client, **changes)
    message = next(
        (text for name, texts in errors.items() if name.split(".")[0] == field for text in texts), ""
    )
    assert complaint in message, errors


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("inference_usage", "daily"),
        ("inference_gpu_type", "T4"),
        ("reclaim", "lyra"),
        ("headroom", 0.0),
        ("forecaster", "none"),
    ],
)
@pytest.mark.parametrize("nothing", [[], [0]])
@pytest.mark.django_db
def test_loan_options_are_refused_without_loans(
    client: APIClient, field: str, value: Any, nothing: list[int]
) -> None:
    assert "about servers on loan" in refused(client, inference_servers=nothing, **{field: value})[field][0]


@pytest.mark.django_db
def test_a_public_curve_that_is_not_here_is_named_with_its_origin(
    client: APIClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PUNCTUAL_TRACES", str(tmp_path))
    message = refused(client, inference_usage="helios_vcvlY")["inference_usage"][0]
    assert "not on this machine" in message
    assert "Helios" in message
    offered = client.get(f"{ADDRESS}choices/").json()["inference_usages"]
    assert {usage["name"] for usage in offered if usage["available"]} == {"daily", "bursty"}


@pytest.mark.django_db
def test_loan_defaults_are_those_of_the_live_platform(client: APIClient) -> None:
    study = started(client)
    assert [study[name] for name in ("inference_usage", "inference_gpu_type", "reclaim", "headroom",
    "forecaster")] == [
        "daily", "T4", "improved", 0.02, "persistence",
    ]  # fmt: skip
    plain = started(client, inference_servers=[0])
    assert [plain[name] for name in ("inference_usage", "inference_gpu_type", "headroom")] == ["", "", None]
    assert plain["notes"] == []


@pytest.mark.django_db
def test_policies_without_loans_run_once_and_a_note_says_so(client: APIClient) -> None:
    study = started(client, policies=["punctual", "edf"], servers=[2, 3], inference_servers=[4, 8])
    assert [(run["policy"], run["servers"], run["inference_servers"]) for run in study["runs"]] == [
        ("punctual", 2, 4),
        ("edf", 2, 0),
        ("punctual", 2, 8),
        ("punctual", 3, 4),
        ("edf", 3, 0),
        ("punctual", 3, 8),
    ]
    assert any("edf uses no borrowed servers" in note for note in study["notes"])


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "policy", ["lyra", *(pytest.param(name, marks=pytest.mark.slow) for name in ("opportunistic", "fifo"))]
)
def test_policies_of_both_kinds_of_servers_lend_and_return(start: Start, policy: str) -> None:
    study = start(policies=(policy,), inference_servers=(8,), best_effort_share=1.0)
    run = runs_of(study)[0]
    assert execute_run(run.pk), SimulationRun.objects.get(pk=run.pk).error
    summary = runs_of(study)[0].summary or {}
    assert summary["servers_on_loan_max"] > 0
    assert summary["settings"]["reclaim"] == "improved"


@pytest.mark.django_db(transaction=True)
def test_loan_options_reach_the_run(start: Start) -> None:
    study = start(
        policies=("punctual",), inference_servers=(8,), inference_usage="bursty", inference_gpu_type="a100",
        reclaim="lyra", headroom=0.25, forecaster="none",
    )  # fmt: skip
    assert execute_run(runs_of(study)[0].pk)
    settings = (runs_of(study)[0].summary or {})["settings"]
    assert settings["inference_gpu_type"] == settings["gpu_type"] == "A100"
    assert (settings["inference_usage"], settings["reclaim"], settings["headroom"],
    settings["forecaster"]) == (
        "bursty", "lyra", 0.25, "none",
    )  # fmt: skip


@pytest.mark.django_db(transaction=True)
def test_run_without_loans_equals_one_of_a_study_without_loans(start: Start) -> None:
    summaries = []
    for lent in ((), (0, 8)):
        run = runs_of(start(policies=("punctual",), inference_servers=lent))[0]
        assert execute_run(run.pk)
        summary = SimulationRun.objects.get(pk=run.pk).summary or {}
        summaries.append(
            {name: summary[name] for name in ("deadlines_met", "mean_jct_seconds", "rescales", "settings")}
        )
    assert summaries[0] == summaries[1]


@pytest.mark.django_db
def test_database_refuses_incomplete_loan_options() -> None:
    for impossible in ({"inference_usage": "daily"}, {"headroom": 0.1}, {"forecaster": "none"}):
        with pytest.raises(IntegrityError), transaction.atomic():
            SimulationStudyFactory.create(**impossible)
