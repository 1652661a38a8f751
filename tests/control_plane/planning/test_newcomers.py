"""The planner receives the cluster's rule for newcomers."""

from __future__ import annotations

import pytest

from scheduling.core.question.snapshot import AGEING_WEIGHT, Newcomers
from scheduling.services.snapshots.planner_settings import planner_settings
from tests.factories import ClusterFactory

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("rule", list(Newcomers))
def test_the_planner_heeds_the_cluster_s_rule_for_newcomers(rule: Newcomers) -> None:
    assert planner_settings(ClusterFactory.create(newcomers=rule.value)).newcomers is rule


def test_open_admission_is_the_default() -> None:
    assert planner_settings(ClusterFactory.create()).newcomers is Newcomers.OPEN


def test_ageing_weight_is_a_cluster_setting() -> None:
    assert planner_settings(ClusterFactory.create()).ageing_weight == AGEING_WEIGHT
    assert planner_settings(ClusterFactory.create(name="ageless", ageing_weight=0.0)).ageing_weight == 0.0
