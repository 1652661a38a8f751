"""Usage, forecasts and training of forecasters: lending works without a model and reclaims ahead with one."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pytest
from django.utils import timezone

from cluster.choices import LendingState, WorkState
from cluster.models import Server
from lending.choices import ReclaimState
from lending.core.lending_rule import LendingRule
from lending.models import (
    ForecasterTraining,
    InferenceCluster,
    ReclaimOrder,
    TrainedForecaster,
    UsageForecast,
    UsageSample,
)
from lending.services import learning
from lending.services.forecasts import forecast_usage
from lending.services.learning import training_run
from lending.services.orchestrator import orchestrate
from lending.services.trainings import (
    TRAININGS,
    start_due_trainings,
    training_cancel,
    training_start,
)
from lending.services.usage import recent_usage, usage_report
from projects.errors import Conflict
from scheduling.models import OutboxMessage
from tests import factories as make

pytestmark = pytest.mark.django_db(transaction=True)

PERIOD = timedelta(minutes=5)


@pytest.fixture
def inference(db: None) -> InferenceCluster:
    made: InferenceCluster = make.InferenceClusterFactory.create(
        name="serving", forecaster="ridge", headroom_fraction=0.0, minimum_hold_seconds=600.0
    )
    for number in range(10):
        make.InferenceServerFactory.create(
            name=f"serving-{number}",
            inference_cluster=made,
            gpus=1,
            lending_state=LendingState.ON_LOAN if number < 6 else LendingState.INFERENCE,
            whitelist="training" if number < 6 else "inference",
            lending_changed_at=timezone.now() - timedelta(hours=1),
        )
    return made


def report(inference: InferenceCluster, usage: list[float], *, ends_at: datetime | None = None) -> datetime:
    newest = ends_at or timezone.now().replace(microsecond=0)
    samples: list[dict[str, Any]] = [
        {"period_ends_at": newest - PERIOD * (len(usage) - 1 - position), "usage": float(value)}
        for position, value in enumerate(usage)
        if np.isfinite(value)
    ]
    usage_report(inference_cluster=inference, samples=samples)
    return newest


def wave(days: float) -> list[float]:
    """Return a smooth usage curve that repeats daily."""
    return [0.5 + 0.3 * float(np.sin(2 * np.pi * step / 288)) for step in range(round(288 * days))]


def test_without_a_model_the_last_sample_is_the_forecast(inference: InferenceCluster) -> None:
    newest = report(inference, [0.3, 0.35, 0.4])
    forecast = forecast_usage(inference.pk)
    assert forecast is not None
    assert forecast.forecaster == "persistence"
    assert forecast.usage == pytest.approx(0.4)
    assert forecast.period_ends_at == newest + PERIOD
    assert forecast_usage(inference.pk).pk == forecast.pk, "asked again it is the same"  # type: ignore[union-attr]


def test_before_the_first_sample_nothing_is_expected(inference: InferenceCluster) -> None:
    assert forecast_usage(inference.pk) is None
    assert forecast_usage(inference.pk + 1000) is None
    orchestrate()


def test_a_period_that_was_never_reported_is_a_gap(inference: InferenceCluster) -> None:
    report(inference, [0.3, float("nan"), 0.5])
    found = recent_usage(inference, 10)
    assert found is not None
    np.testing.assert_allclose(found[0], [0.3, np.nan, 0.5])


def test_a_shortfall_is_logged_with_the_usage(inference: InferenceCluster) -> None:
    report(inference, [0.3, 0.7])
    rows = UsageSample.objects.order_by("period_ends_at").values_list("on_loan_servers", "shortfall_servers")
    assert list(rows) == [(6, 0), (6, 3)], "six of ten are away, and seven are needed"


def test_a_trained_forecaster_is_asked_and_replaces_the_last_sample(inference: InferenceCluster) -> None:
    report(inference, wave(4))
    training = training_start(inference_cluster=inference)
    assert training_run(training.pk) is True
    training.refresh_from_db()
    assert (training.state, training.progress()) == (WorkState.DONE, 1.0)
    trained = TrainedForecaster.objects.get()
    assert trained.error < trained.persistence_error
    assert bytes(trained.content)[:2] != b"\x80\x04", "no pickle"
    forecast = forecast_usage(inference.pk)
    assert forecast is not None
    assert (forecast.forecaster, forecast.trained) == ("ridge", trained)
    assert forecast.usage == pytest.approx(wave(4.01)[288 * 4], abs=0.01)


def test_a_model_that_cannot_be_read_is_no_reason_to_stop(inference: InferenceCluster) -> None:
    newest = report(inference, [0.4] * 12)
    TrainedForecaster.objects.create(
        inference_cluster=inference, forecaster="ridge", content=b"broken", samples=9, learned_until=newest,
        error=0.1, persistence_error=0.2,
    )  # fmt: skip
    forecast = forecast_usage(inference.pk)
    assert forecast is not None
    assert forecast.forecaster == "persistence"


def test_too_few_samples_fail_a_training_with_a_sentence(inference: InferenceCluster) -> None:
    report(inference, [0.4] * 20)
    training = training_start(inference_cluster=inference)
    assert training_run(training.pk) is False
    training.refresh_from_db()
    assert (training.state, "288 samples" in training.error) == (WorkState.FAILED, True)


def test_one_training_of_a_forecaster_at_a_time(inference: InferenceCluster) -> None:
    training = training_start(inference_cluster=inference)
    with pytest.raises(Conflict):
        training_start(inference_cluster=inference)
    training_cancel(training=training)
    assert training_start(inference_cluster=inference).pk != training.pk
    with pytest.raises(Conflict, match="needs no training"):
        training_start(inference_cluster=inference, forecaster="persistence")


def test_a_cancelled_training_stops_at_its_next_epoch(
    inference: InferenceCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    report(inference, wave(4))
    training = training_start(inference_cluster=inference)
    train = learning._train

    def cancelled_meanwhile(attempt: Any) -> bool:
        training_cancel(training=training)
        return train(attempt)

    monkeypatch.setattr(learning, "_train", cancelled_meanwhile)
    assert training_run(training.pk) is False
    training.refresh_from_db()
    assert training.state == WorkState.CANCELLED
    assert not TrainedForecaster.objects.exists()


def test_a_worker_that_lost_its_lease_stores_nothing(
    inference: InferenceCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    report(inference, wave(4))
    training = training_start(inference_cluster=inference)
    store = learning._store

    def given_away(*arguments: Any) -> bool:
        ForecasterTraining.objects.update(lease_expires_at=timezone.now() - timedelta(seconds=1))
        TRAININGS.sweep()
        return store(*arguments)

    monkeypatch.setattr(learning, "_store", given_away)
    assert training_run(training.pk) is False
    training.refresh_from_db()
    assert training.state == WorkState.QUEUED
    assert not TrainedForecaster.objects.exists()


def test_a_training_whose_workers_die_is_given_up_after_three(inference: InferenceCluster) -> None:
    training = training_start(inference_cluster=inference)
    for _ in range(3):
        assert TRAININGS.attempt(training.pk) is not None
        ForecasterTraining.objects.update(lease_expires_at=timezone.now() - timedelta(seconds=1))
        TRAININGS.sweep()
    training.refresh_from_db()
    assert training.state == WorkState.FAILED
    assert "lost 3 times" in training.error


def test_a_message_that_was_lost_is_sent_again(inference: InferenceCluster) -> None:
    training_start(inference_cluster=inference)
    OutboxMessage.objects.all().delete()
    assert TRAININGS.sweep() == 0
    ForecasterTraining.objects.update(wake_at=timezone.now() - timedelta(seconds=1))
    assert TRAININGS.sweep() == 1


def test_forecaster_is_trained_daily_after_three_days_of_samples(
    inference: InferenceCluster,
) -> None:
    report(inference, wave(2.5))
    assert start_due_trainings() == 0
    report(inference, wave(3.1))
    assert start_due_trainings() == 1
    assert start_due_trainings() == 0, "one a day"
    ForecasterTraining.objects.update(
        created_at=timezone.now() - timedelta(days=2), state="failed", finished_at=timezone.now(), error="x"
    )
    assert start_due_trainings() == 1


# Asking back ahead of the peak ------------------------------------------------------------------------


def expect(inference: InferenceCluster, usage: float, newest: datetime) -> None:
    UsageForecast.objects.update_or_create(
        inference_cluster=inference,
        period_ends_at=newest + PERIOD,
        defaults={"usage": usage, "forecaster": "ridge"},
    )


def asked_back() -> list[int]:
    return list(ReclaimOrder.objects.order_by("created_at").values_list("count", flat=True))


def test_servers_are_asked_back_before_usage_has_risen(inference: InferenceCluster) -> None:
    InferenceCluster.objects.update(asks_back_by_forecast=True)
    newest = report(inference, [0.4])
    expect(inference, 0.6, newest)
    for _ in range(3):
        orchestrate()
    order = ReclaimOrder.objects.get()
    assert (order.count, order.source, order.ahead_of_usage) == (2, "forecast", True)
    assert order.wanted_by - newest <= PERIOD / 10, "the period that they are for has begun"
    assert (order.state, order.on_time()) == (ReclaimState.RETURNED, True)
    assert Server.objects.filter(lending_state=LendingState.ON_LOAN).count() == 4


def test_nothing_is_reclaimed_if_the_inference_scheduler_does_it(
    inference: InferenceCluster,
) -> None:
    expect(inference, 0.9, report(inference, [0.9]))
    orchestrate()
    assert asked_back() == []


def test_forecast_alone_reclaims_no_recently_lent_server(inference: InferenceCluster) -> None:
    InferenceCluster.objects.update(asks_back_by_forecast=True)
    Server.objects.filter(name__in=["serving-0", "serving-1", "serving-2", "serving-3", "serving-4"]).update(
        lending_changed_at=timezone.now()
    )
    expect(inference, 0.8, report(inference, [0.4]))
    orchestrate()
    assert asked_back() == [1]


def test_measured_usage_takes_what_it_needs_whenever_that_was_lent(inference: InferenceCluster) -> None:
    InferenceCluster.objects.update(asks_back_by_forecast=True, minimum_gain_servers=9)
    Server.objects.update(lending_changed_at=timezone.now())
    expect(inference, 0.5, report(inference, [0.8]))
    orchestrate()
    assert asked_back() == [4]
    assert ReclaimOrder.objects.get().ahead_of_usage is False


def test_a_rise_too_small_to_be_worth_it_waits(inference: InferenceCluster) -> None:
    InferenceCluster.objects.update(asks_back_by_forecast=True, minimum_gain_servers=2)
    newest = report(inference, [0.4])
    expect(inference, 0.5, newest)
    orchestrate()
    assert asked_back() == []
    expect(inference, 0.6, newest)
    orchestrate()
    assert asked_back() == [2]


def test_an_old_sample_asks_for_nothing(inference: InferenceCluster) -> None:
    InferenceCluster.objects.update(asks_back_by_forecast=True)
    newest = report(inference, [0.9], ends_at=timezone.now() - timedelta(hours=1))
    expect(inference, 0.9, newest)
    orchestrate()
    assert asked_back() == []


@pytest.mark.parametrize(
    ("usage", "forecast", "need", "target"),
    [(0.42, 0.45, 234, 275), (0.60, 0.55, 312, 197), (0.95, 0.97, 505, 4), (0.99, 1.00, 520, 0)],
)
def test_v14_an_inference_clusters_own_rule_is_the_published_one(
    db: None, usage: float, forecast: float, need: int, target: int
) -> None:
    made = make.InferenceClusterFactory.create()
    rule = LendingRule(520, made.headroom_fraction, made.forecast_margin_fraction)
    assert (rule.reserve, rule.need(usage, forecast), rule.target(usage, forecast)) == (11, need, target)


@pytest.mark.slow
def test_the_published_network_is_trained_in_its_queue_with_progress(inference: InferenceCluster) -> None:
    InferenceCluster.objects.update(forecaster="lstm")
    inference.refresh_from_db()
    noise = np.random.default_rng(0).normal(0.0, 0.021, 288 * 4)
    report(inference, list(np.clip(np.array(wave(4)) + noise, 0.0, 1.0)))
    training = training_start(inference_cluster=inference)
    assert training_run(training.pk) is True
    training.refresh_from_db()
    assert 0 < training.epochs_done <= training.epochs_at_most
    assert TrainedForecaster.objects.get().error < TrainedForecaster.objects.get().persistence_error
    forecast = forecast_usage(inference.pk)
    assert forecast is not None
    assert forecast.forecaster == "lstm"
