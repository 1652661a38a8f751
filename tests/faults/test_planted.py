"""A planted defect takes effect: the function that it replaces exists and the control plane uses it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from cluster.models import Agent, Cluster
from scheduling.models import CurveLevel
from scheduling.services.generations.failure_charges import FailureCharges
from scheduling.services.snapshots import jobs_of_pool, planner_settings
from tests.faults import planted

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_the_defect_short_fence_triples_silences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Agent, "silent_seconds", Agent.silent_seconds)
    planted.DEFECTS["short-fence"]()
    assert Agent(last_report_at=NOW - timedelta(seconds=7)).silent_seconds(NOW) == 21.0


def test_the_defect_no_pause_charged_zeroes_all_charges(monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name in (
        (FailureCharges, "_computed"),
        (jobs_of_pool, "curve_from_measurements"),
        (planner_settings, "change_slack_seconds"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    cluster, levels = Cluster(reserve_servers=1), [CurveLevel(gpus=1, iterations_per_second=2.0)]

    def charged() -> tuple[float, float]:
        curve = jobs_of_pool.core_curve(levels, batch=8, total=2, margin=0.0)
        assert curve is not None
        return FailureCharges(cluster).asked_for(curve, None).slack_seconds, float(curve.pause_seconds.max())

    assert min(charged()) > 0.0
    planted.DEFECTS["no-pause-charged"]()
    assert charged() == (0.0, 0.0)


def test_only_a_defect_changes_the_control_planes_settings() -> None:
    assert planted.environment("") == {}
    assert planted.environment("short-fence")["DJANGO_SETTINGS_MODULE"] == "tests.faults.planted_settings"
