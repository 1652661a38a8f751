"""The emulated inference scheduler against the real API: it lends at night, reclaims by day, and survives
restarts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from django.utils import timezone

from cluster.choices import LendingState
from cluster.models import Gpu, Server
from config.wsgi import application
from lending.choices import LoanState, ReclaimState
from lending.forecasting.persistence import Persistence
from lending.models import InferenceCluster, LoanOrder, ReclaimOrder, UsageSample
from lending.services import usage as lending_usage
from lending.services.forecasts import forecast_usage
from lending.services.orchestrator import orchestrate
from punctual.client import Client
from simulation.inference.usage import UsageSeries
from tests import factories as make
from workers.inference_emulator.emulator import Emulator
from workers.inference_emulator.load import REQUESTS_PER_SERVER, RequestLoad, serve
from workers.inference_emulator.order_book import OrderBook

pytestmark = pytest.mark.django_db(transaction=True)

PERIOD_SECONDS = 60.0
SERVERS = 10


class Way(httpx.BaseTransport):
    """The connection to the platform. ``lost``: requests arrive but their answers do not; ``closed``: neither
    arrives."""

    def __init__(self) -> None:
        self.inner = httpx.WSGITransport(app=application)
        self.closed = False
        self.lost_answers_to = ""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if self.closed:
            raise httpx.ConnectError("nothing listens", request=request)
        answer = self.inner.handle_request(request)
        if self.lost_answers_to and request.method == "POST" and self.lost_answers_to in request.url.path:
            raise httpx.ReadError("the connection broke", request=request)
        return answer


class Clock:
    """A present that the test moves. It begins in the past, since periods are reported only once they are
    over, at the start of a period."""

    def __init__(self, periods: int) -> None:
        whole = timezone.now().timestamp() // PERIOD_SECONDS
        self.now = datetime.fromtimestamp((whole - periods - 2) * PERIOD_SECONDS, tz=UTC)

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def inference(db: None) -> InferenceCluster:
    made: InferenceCluster = make.InferenceClusterFactory.create(
        name="serving",
        period_seconds=PERIOD_SECONDS,
        # The published rule, unless a test says otherwise.
        minimum_hold_seconds=0.0,
        hysteresis_fraction=0.0,
        headroom_fraction=0.1,
        forecaster="persistence",
    )
    for number in range(SERVERS):
        make.InferenceServerFactory.create(name=f"serving-{number:02}", inference_cluster=made, gpus=0)
    return made


@pytest.fixture
def way() -> Way:
    return Way()


@pytest.fixture
def client(way: Way) -> Iterator[Client]:
    with Client(
        "http://localhost", token="ps_credential_of_serving", retry_seconds=0.0, transport=way
    ) as made:
        yield made


def emulator(client: Client, usage: list[float], **changes: Any) -> Emulator:
    """An emulator of a curve with one value a period."""
    series = UsageSeries("drawn", "drawn by the test", np.array(usage), period_seconds=PERIOD_SECONDS)
    given: dict[str, Any] = {
        "inference": client.inference,
        "name": "serving",
        "load": RequestLoad(series, SERVERS),
        "period_seconds": PERIOD_SECONDS,
        "clock": Clock(len(usage)),
        **changes,
    }
    return Emulator(**given)


def live(emulated: Emulator, periods: int, inference: InferenceCluster) -> None:
    """Let periods pass, with the platform's periodic work in between."""
    clock = emulated.clock
    assert isinstance(clock, Clock)
    for _ in range(periods):
        for _ in range(2):
            emulated.step()
            forecast_usage(inference.pk)
            orchestrate()
            clock.now += timedelta(seconds=PERIOD_SECONDS / 2)


def on_loan() -> int:
    return Server.objects.filter(lending_state=LendingState.ON_LOAN).count()


def test_servers_are_lent_at_low_usage_and_back_before_high_usage(
    inference: InferenceCluster, client: Client
) -> None:
    usage = [0.3, 0.5, 0.9, 0.6, 0.6]
    emulated = emulator(client, usage)
    live(emulated, 2, inference)
    assert on_loan() == 6, "ten, less one that is never lent, less three that serve"
    live(emulated, 2, inference)
    assert on_loan() == 0
    live(emulated, 2, inference)
    assert on_loan() == 3
    assert not emulated.book.orders
    assert set(LoanOrder.objects.values_list("state", flat=True)) == {LoanState.DONE}
    assert set(ReclaimOrder.objects.values_list("state", flat=True)) == {ReclaimState.CONFIRMED}


def test_servers_with_replicas_of_deployments_are_not_offered(
    inference: InferenceCluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = Server.objects.get(name="serving-00").pk
    monkeypatch.setattr("lending.services.occupied._registered", [lambda ids: {serving} & set(ids)])
    live(emulator(client, [0.3, 0.3]), 2, inference)
    assert on_loan() == 6
    assert Server.objects.get(pk=serving).lending_state == LendingState.INFERENCE


def test_headroom_for_two_periods_of_rising_usage_avoids_shortfalls(
    inference: InferenceCluster, client: Client
) -> None:
    """The usage measured in one period is acted on at its end, after the next one has begun."""
    usage = [0.3, 0.4, 0.5, 0.6, 0.6]
    InferenceCluster.objects.update(headroom_fraction=0.2)
    emulated = emulator(client, usage)
    live(emulated, 5, inference)
    assert UsageSample.objects.count() >= 4
    assert ReclaimOrder.objects.exists()
    assert set(UsageSample.objects.values_list("seen_shortfall_servers", flat=True)) == {0}
    sources = set(UsageSample.objects.values_list("source", flat=True))
    assert len(sources) == 1
    assert sources.pop().startswith("emulated: "), "nobody shall take it for a measurement"


def test_a_burst_beyond_the_headroom_is_a_shortfall_and_is_answered(
    inference: InferenceCluster, client: Client
) -> None:
    emulated = emulator(client, [0.3] * 2 + [0.9] * 4)
    live(emulated, 6, inference)
    missing = [sample.seen_shortfall_servers or 0 for sample in UsageSample.objects.all()]
    assert max(missing) == 5, "nine are needed and four are at home when the burst comes"
    assert missing[-1] == 0
    assert on_loan() == 0


def test_a_margin_on_the_forecast_keeps_more_servers_at_home(
    inference: InferenceCluster, client: Client
) -> None:
    InferenceCluster.objects.update(forecast_margin_fraction=0.2)
    live(emulator(client, [0.3] * 20), 2, inference)
    assert on_loan() == 4, "ten, less one that is never lent, less five that might serve"


def test_forecast_demand_is_reclaimed_before_usage_rises(
    inference: InferenceCluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulated = emulator(client, [0.3] * 20)
    live(emulated, 2, inference)
    assert on_loan() == 6
    monkeypatch.setattr(Persistence, "forecast", lambda *_: 0.5)
    live(emulated, 1, inference)
    order = ReclaimOrder.objects.get()
    assert (order.count, order.ahead_of_usage) == (2, True)
    assert order.begun_at is not None, "it does not wait: the period that it is for has begun"
    assert on_loan() == 4


def test_a_decision_waits_for_the_forecast_but_not_for_long(
    inference: InferenceCluster, client: Client
) -> None:
    emulated = emulator(client, [0.3] * 20)
    clock = emulated.clock
    assert isinstance(clock, Clock)
    emulated.step()
    clock.now += timedelta(seconds=PERIOD_SECONDS)
    emulated.step()
    assert (UsageSample.objects.count(), LoanOrder.objects.count()) == (1, 0), "nothing is forecast yet"
    clock.now += timedelta(seconds=PERIOD_SECONDS / 3)
    emulated.step()
    assert LoanOrder.objects.count() == 1, "nobody forecasts"


def test_without_forecasts_decisions_wait_for_none(inference: InferenceCluster, client: Client) -> None:
    emulated = emulator(client, [0.3] * 20, uses_forecast=False)
    clock = emulated.clock
    assert isinstance(clock, Clock)
    emulated.step()
    clock.now += timedelta(seconds=PERIOD_SECONDS)
    emulated.step()
    assert LoanOrder.objects.count() == 1


def test_samples_follow_the_curve_whenever_the_emulator_starts(
    inference: InferenceCluster, client: Client
) -> None:
    emulated = emulator(client, [0.30, 0.35, 0.40, 0.45, 0.50])
    clock = emulated.clock
    assert isinstance(clock, Clock)
    clock.now += timedelta(seconds=0.7 * PERIOD_SECONDS)
    live(emulated, 3, inference)
    reported = UsageSample.objects.order_by("period_ends_at").values_list("usage", flat=True)
    assert list(reported) == pytest.approx([0.30, 0.35, 0.40])


def test_servers_that_are_back_count_no_longer_as_asked_back(
    inference: InferenceCluster, client: Client
) -> None:
    """One of two reclaimed servers holds work and comes late: only the number missing beyond it is
    reclaimed."""
    emulated = emulator(client, [0.3] * 2 + [0.5] * 2 + [0.8] * 2)
    live(emulated, 2, inference)
    lent = Server.objects.filter(lending_state=LendingState.ON_LOAN)
    gpus = [
        Gpu.objects.create(server=server, index=0, kind="emulated-a100", uuid=server.name, memory_bytes=1)
        for server in lent.order_by("-pk")[:5]
    ]
    make.GenerationFactory.create(gpus=gpus, world_size=len(gpus))
    live(emulated, 2, inference)
    first = ReclaimOrder.objects.get()
    assert (first.count, first.state) == (2, ReclaimState.RECLAIMING)
    assert first.servers.filter(returned_at__isnull=True).count() == 1
    live(emulated, 2, inference)
    assert list(ReclaimOrder.objects.order_by("created_at").values_list("count", flat=True)) == [2, 3]


def test_hysteresis_avoids_lending_a_server_back_and_forth(
    inference: InferenceCluster, client: Client
) -> None:
    InferenceCluster.objects.update(hysteresis_fraction=0.05)
    emulated = emulator(client, [0.29, 0.31, 0.29, 0.29])
    live(emulated, 4, inference)
    assert not ReclaimOrder.objects.exists()
    assert LoanOrder.objects.count() == 1
    InferenceCluster.objects.update(hysteresis_fraction=0.0)
    live(emulated, 1, inference)
    assert LoanOrder.objects.count() == 2, "without hysteresis one more is lent"


def test_a_peak_keeps_servers_at_home_for_the_least_time(inference: InferenceCluster, client: Client) -> None:
    """Servers stay at home while usage fluctuates, instead of being lent between bursts."""
    InferenceCluster.objects.update(minimum_hold_seconds=2 * PERIOD_SECONDS)
    emulated = emulator(client, [0.6, 0.3, 0.6] + [0.3] * 4)
    live(emulated, 5, inference)
    assert on_loan() == 3
    assert not ReclaimOrder.objects.exists()
    live(emulated, 2, inference)
    assert on_loan() == 6


def test_an_order_with_a_lost_answer_is_repeated_as_the_same_order(
    inference: InferenceCluster, client: Client, way: Way
) -> None:
    emulated = emulator(client, [0.3] * 20)
    way.lost_answers_to = "loan-orders"
    live(emulated, 3, inference)
    order = LoanOrder.objects.get()
    assert [one.id for one in emulated.book.orders] == [str(order.pk)]
    way.lost_answers_to = ""
    live(emulated, 2, inference)
    assert LoanOrder.objects.get() == order
    assert (on_loan(), emulated.book.orders) == (6, [])


def test_samples_taken_during_an_outage_are_reported_later(
    inference: InferenceCluster, client: Client, way: Way
) -> None:
    emulated = emulator(client, [0.3] * 20)
    live(emulated, 2, inference)
    before = UsageSample.objects.count()
    way.closed = True
    live(emulated, 2, inference)
    assert UsageSample.objects.count() == before
    way.closed = False
    live(emulated, 1, inference)
    assert UsageSample.objects.count() == before + 3


def test_a_restarted_emulator_sends_its_pending_orders(
    inference: InferenceCluster, client: Client, way: Way, tmp_path: Path
) -> None:
    file = tmp_path / "orders.json"
    first = emulator(client, [0.3] * 20, book=OrderBook(file))
    way.lost_answers_to = "loan-orders"
    live(first, 2, inference)
    decided = [order.id for order in first.book.orders]
    assert decided
    way.lost_answers_to = ""
    second = emulator(client, [0.3] * 20, book=OrderBook(file))
    assert [order.id for order in second.book.orders] == decided
    live(second, 1, inference)
    assert [str(order.pk) for order in LoanOrder.objects.all()] == decided


def test_reclaims_can_be_left_to_the_platform(
    inference: InferenceCluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The test's present is in the past.
    monkeypatch.setattr(lending_usage, "STALE_PERIODS", 1000.0)
    InferenceCluster.objects.update(asks_back_by_forecast=True)
    emulated = emulator(client, [0.3] * 2 + [0.7] * 3, asks_back=False)
    live(emulated, 5, inference)
    assert set(ReclaimOrder.objects.values_list("source", flat=True)) == {"forecast"}
    assert on_loan() == 2


def test_a_refused_order_is_decided_again(inference: InferenceCluster, client: Client) -> None:
    InferenceCluster.objects.update(lending=False)
    emulated = emulator(client, [0.3] * 20)
    live(emulated, 3, inference)
    assert (on_loan(), emulated.book.orders) == (0, [])
    InferenceCluster.objects.update(lending=True)
    live(emulated, 2, inference)
    assert on_loan() == 6


def test_requests_beyond_the_servers_at_home_need_more() -> None:
    serving = serve(4.2 * REQUESTS_PER_SERVER, 3)
    assert (serving.needed_servers, serving.missing_servers) == (5, 2)


def test_the_emulator_does_not_import_django() -> None:
    code = "import sys, workers.inference_emulator.__main__; sys.exit('django' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
