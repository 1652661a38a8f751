"""Studies that compare open and prudent newcomers with the upper bound of any schedule."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rest_framework.test import APIClient

from projects.models import User
from simulation.models import SimulationStudy
from simulation.policies import POLICIES
from simulation.services.comparing import refresh_comparison
from simulation.services.executing import execute_run
from tests.simulation.product.conftest import runs_of

Start = Callable[..., SimulationStudy]
ADDRESS = "/api/v1/simulations/"
#: Jobs for far more GPUs than there are.
OVERLOAD = {"servers": (1,), "gpus_per_server": 4, "limit_jobs": 30, "policies": ("elasticflow", "edf")}


@pytest.fixture
def client(operator: User, store: Path) -> APIClient:
    api_client = APIClient()
    api_client.force_authenticate(operator)
    return api_client


@pytest.mark.django_db(transaction=True)
def test_open_and_prudent_newcomers_stand_side_by_side_with_the_bound(
    client: APIClient, start: Start
) -> None:
    study = start(**OVERLOAD, newcomers=("open", "prudent"))
    runs = runs_of(study)
    assert [(run.policy, run.newcomers) for run in runs] == [
        ("elasticflow", "open"), ("elasticflow", "prudent"), ("edf", "open"),
    ]  # fmt: skip
    assert study.notes == ["Run with open newcomers alone, because they keep no room for newcomers: edf."]
    for run in runs:
        assert execute_run(run.pk)
    refresh_comparison(study.pk)
    shown = client.get(f"{ADDRESS}{study.pk}/").json()
    by_rule = {(run["policy"], run["newcomers"]): run["summary"] for run in shown["runs"]}
    most = by_rule["elasticflow", "open"]["deadlines_met_bound"]
    assert all(summary["deadlines_met_bound"] == most for summary in by_rule.values()), (
        "of the workload alone"
    )
    assert all(summary["deadlines_met"] <= most for summary in by_rule.values())
    assert most < by_rule["elasticflow", "open"]["slo_jobs"], "not all can be met"
    assert by_rule["elasticflow", "open"] != by_rule["elasticflow", "prudent"]
    labels = [run["label"] for run in shown["comparison"]["runs"]]
    assert len(set(labels)) == 3
    assert labels[1] == "elasticflow, newcomers prudent"
    rows = {row["name"]: row["cells"] for row in shown["comparison"]["table"]}
    assert {cell["text"] for cell in rows["deadlines_met_bound"]} == {str(most)}
    names = [trace.get("name") for trace in shown["comparison"]["figures"]["ratios"]["data"]]
    assert "Bound" in names
    report = client.get(f"{ADDRESS}{study.pk}/report/").content
    assert b"newcomers prudent" in report
    assert b"Deadlines met by any schedule, at most" in report


@pytest.mark.django_db(transaction=True)
def test_the_bound_is_left_out_on_demand(start: Start) -> None:
    study = start(**{**OVERLOAD, "policies": ("edf",)}, bound=False)
    (run,) = runs_of(study)
    assert execute_run(run.pk)
    run.refresh_from_db()
    assert run.summary is not None
    assert run.summary["deadlines_met_bound"] is None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"newcomers": ["careful"]}, "careful"),
        ({"newcomers": ["prudent"], "policies": ["edf", "fifo"]}, "elasticflow"),
        ({"newcomers": ["prudent"] * 11}, "10"),
        ({"newcomers": "prudent"}, "list"),
        ({"bound": "perhaps"}, "boolean"),
    ],
)
def test_invalid_newcomer_options_are_refused_by_field(
    client: APIClient, changes: dict[str, Any], says: str
) -> None:
    body = {"trace": "elasticflow", "policies": ["punctual"], "servers": [1], "gpus_per_server": 4, **changes}
    answer = client.post(ADDRESS, body, format="json")
    assert answer.status_code == 400
    (field,) = answer.json()["errors"]
    assert field.split(".")[0] == ("bound" if "bound" in changes else "newcomers")
    assert says in str(answer.json())
    assert not SimulationStudy.objects.exists()


def test_choices_list_policies_that_price_newcomers(client: APIClient) -> None:
    answer = client.get(f"{ADDRESS}choices/").json()
    assert answer["newcomers"] == ["open", "prudent"]
    assert answer["pricing_policies"] == [
        name for name in answer["policies"] if POLICIES[name].prices_newcomers
    ]
