"""`punctual simulations` against the real API; the test does what a worker does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from projects.models import User
from simulation.models import SimulationRun, SimulationStudy
from simulation.services.executing import execute_run
from tests.cli.conftest import Run
from tests.cli.test_real_api import log_in
from tests.factories import PASSWORD

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(600)]


@pytest.fixture
def operator(
    live_server: Any, run: Run, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.CHECKPOINT_URL = f"file://{tmp_path}/store"
    User.objects.create_user("olga", password=PASSWORD, is_operator=True)
    log_in(run, live_server.url, "olga", monkeypatch)


@pytest.mark.usefixtures("operator")
def test_a_study_is_started_shown_cancelled_and_deleted(run: Run) -> None:
    assert "No study yet" in run("simulations").err
    started = run(
        "simulations", "start", "elasticflow", "--policies", "punctual,edf", "--servers", "2,4",
        "--gpus-per-server", "4", "--limit-jobs", "10",
    )  # fmt: skip
    assert started.code == 0, started.err
    study = SimulationStudy.objects.get()
    assert "4 runs" in started.out
    first = SimulationRun.objects.order_by("id").first()
    assert first is not None
    execute_run(first.pk)
    shown = run("simulations", "show", str(study.pk))
    assert "of 10" in shown.out
    assert "100%" in shown.out
    assert "queued" in shown.out
    assert run("simulations", "cancel", str(study.pk)).code == 0
    document = json.loads(run("simulations", "show", str(study.pk), "--json").out)
    assert [one["state"] for one in document["runs"]] == ["done", "cancelled", "cancelled", "cancelled"]
    assert run("simulations", "cancel", str(study.pk)).code == 1
    assert str(study.pk) in run("simulations").out
    assert run("simulations", "delete", str(study.pk)).code == 0
    assert run("simulations", "show", str(study.pk)).code == 4


@pytest.mark.usefixtures("operator")
def test_a_study_with_loans_is_started_and_its_gains_are_shown(run: Run) -> None:
    started = run(
        "simulations", "start", "elasticflow", "--policies", "punctual,edf", "--servers", "2",
        "--gpus-per-server", "4",
        "--limit-jobs", "10", "--inference-servers", "0,8", "--inference-usage", "bursty", "--headroom",
        "0.1",
        "--reclaim", "lyra", "--forecaster", "none", "--inference-gpu-type", "V100",
    )  # fmt: skip
    assert started.code == 0, started.err
    assert "3 runs" in started.out
    assert "edf uses no borrowed servers" in started.err
    study = SimulationStudy.objects.get()
    assert (study.inference_usage, study.inference_gpu_type, study.reclaim, study.headroom,
    study.forecaster) == (
        "bursty", "V100", "lyra", 0.1, "none",
    )  # fmt: skip
    for made in SimulationRun.objects.all():
        assert execute_run(made.pk)
    shown = run("simulations", "show", str(study.pk)).out
    assert "2 + 8" in shown
    assert "ON LOAN" in shown
    document = json.loads(run("simulations", "show", str(study.pk), "--json").out)
    assert sorted(one["inference_servers"] for one in document["runs"]) == [0, 0, 8]
    refused = run(
        "simulations", "start", "elasticflow", "--gpus-per-server", "4", "--servers", "2", "--reclaim", "lyra"
    )
    assert (refused.code, "about servers on loan" in refused.err) == (2, True)
    assert run("simulations", "start", "elasticflow", "--inference-servers", "some").code == 2
    assert "daily" in run("simulations", "choices").out


@pytest.mark.usefixtures("operator")
def test_impossible_requests_are_refused_in_one_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "elasticflow" in run("simulations", "choices").out
    unknown = run("simulations", "start", "marmalade")
    assert unknown.code == 2
    assert "elasticflow" in unknown.err
    assert run("simulations", "start", "elasticflow", "--servers", "many").code == 2
    monkeypatch.setenv("PUNCTUAL_RETRY_SECONDS", "0")
    assert "server" in run("simulations", "start", "live").err
