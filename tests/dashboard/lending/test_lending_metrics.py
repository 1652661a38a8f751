"""Metrics of lending for a monitoring system."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families

from lending.api.metrics import lending_metrics
from tests import factories
from tests.dashboard.lending.lending_day import build_day

pytestmark = pytest.mark.django_db

LogIn = Callable[[Any], Client]


def gauges(text: str) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "inference_cluster" in sample.labels
    }


def test_gauges_say_where_servers_are_and_what_reclaims_took(as_user: LogIn) -> None:
    day = build_day(periods=72)
    client = as_user(factories.UserFactory.create(is_operator=True))
    found = gauges(client.get("/metrics").content.decode())
    servers = {
        state: found["punctual_inference_servers", "serving", state]
        for state in ("inference", "on_loan", "reclaiming")
    }
    assert servers == {
        "inference": 16 - len(day.away),
        "on_loan": len(day.away) - 1,
        "reclaiming": 1,
    }
    newest = day.inference_cluster.usage_samples.order_by("-period_ends_at").first()
    assert newest is not None
    assert found["punctual_inference_usage", "serving"] == newest.usage
    assert 0 < found["punctual_inference_usage_forecast", "serving"] < 1
    assert found["punctual_inference_shortfall_servers", "serving"] == newest.shortfall_servers
    assert found["punctual_loan_orders", "serving", "done"] == len(day.loans)
    assert found["punctual_reclaim_orders", "serving", "reclaiming"] == 1
    assert found["punctual_reclaim_orders", "serving", "confirmed"] == len(day.reclaims) - 1
    times = [order.seconds_to_return() or 0.0 for order in day.reclaims if order.returned_at]
    assert found["punctual_reclaim_return_mean_seconds", "serving"] == pytest.approx(
        sum(times) / len(times), abs=0.01
    )
    assert found["punctual_reclaim_return_maximum_seconds", "serving"] == max(times)


def test_lending_metrics_need_a_cluster_and_usage_needs_samples(db: None) -> None:
    assert list(lending_metrics(timezone.now())) == []
    factories.InferenceClusterFactory.create(name="new")
    families = {family.name: family.samples for family in lending_metrics(timezone.now())}
    assert families["punctual_inference_usage"] == []
    assert {sample.value for sample in families["punctual_inference_servers"]} == {0}


def test_queries_do_not_grow_with_clusters(db: None) -> None:
    counts = []
    for _ in range(2):
        factories.InferenceClusterFactory.create()
        with CaptureQueriesContext(connection) as queries:
            list(lending_metrics(timezone.now()))
        counts.append(len(queries))
    assert counts[0] == counts[1]
