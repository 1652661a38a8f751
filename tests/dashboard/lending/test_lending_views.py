"""The pages on lending as HTML: for operators, with every figure from rows, in a constant number of
queries."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from cluster.choices import LendingState, Whitelist
from cluster.models import UtilisationSample
from dashboard.figures import LENDING_PANELS
from lending.choices import OrderSource, ReclaimState
from lending.models import InferenceCluster, ReclaimOrder, UsageSample
from lending.selectors.effects_on_jobs import borrowed_use, promises_touched
from lending.services.orchestrator import orchestrate
from lending.services.reclaiming import reclaim_order_create
from projects.models import User
from scheduling.choices import AssignmentState, PromiseOutcome
from scheduling.models import Assignment, Job
from tests import factories
from tests.dashboard.lending.lending_day import Day, build_day
from tests.plugins.remembered import Remembered

pytestmark = pytest.mark.django_db

LogIn = Callable[[Any], Client]
FRAGMENTS = ("standing", "combined", "orders")
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def days() -> Remembered[Day]:
    return Remembered(lambda: build_day(periods=72))


@pytest.fixture
def day(db: None, days: Remembered[Day]) -> Day:
    return days()


@pytest.fixture
def operator(db: None) -> User:
    user: User = factories.UserFactory.create(username="olga", is_operator=True)
    return user


def addresses(day: Day) -> list[str]:
    order, loan = day.reclaims[0].pk, day.loans[0].pk
    return [
        "/lending/",
        "/lending/?cluster=serving&window=7d",
        *(f"/lending/?fragment={name}" for name in FRAGMENTS),
        *(f"/lending/panels/{name}/?cluster=serving&window=6h" for name in LENDING_PANELS),
        f"/lending/orders/{loan}/?kind=loan",
        f"/lending/orders/{order}/",
        *(f"/lending/orders/{order}/?fragment={name}" for name in ("summary", "choice", "timeline")),
    ]


def test_every_page_and_figure_is_there_for_an_operator(day: Day, operator: User, as_user: LogIn) -> None:
    client = as_user(operator)
    for address in addresses(day):
        assert client.get(address).status_code == 200, address
    for name in LENDING_PANELS:
        assert "figure" in client.get(f"/lending/panels/{name}/?window=6h").json(), name
    for address in ("/lending/panels/horoscope/", "/lending/?cluster=nowhere", f"/lending/orders/{uuid4()}/"):
        assert client.get(address).status_code == 404, address


def test_only_operators_see_figures_and_orders(day: Day, as_user: LogIn) -> None:
    client = as_user(factories.UserFactory.create())
    for address in addresses(day):
        answer = client.get(address)
        assert answer.status_code == (404 if "/orders/" in address else 403), address
        assert "serving-0" not in answer.content.decode(), address
    assert "/lending/" not in client.get("/").content.decode()


def test_without_a_session_pages_redirect_and_panels_answer_401(day: Day, client: Client) -> None:
    for address in addresses(day):
        answer = client.get(address)
        expected = 401 if "fragment" in address or "panels" in address else 302
        assert answer.status_code == expected, address


def test_pages_accept_only_get(day: Day, operator: User, as_user: LogIn) -> None:
    client = as_user(operator)
    for address in addresses(day):
        for method in (client.post, client.put, client.patch, client.delete):
            assert method(address).status_code == 405, address


def test_without_inference_servers_the_page_names_the_setting(operator: User, as_user: LogIn) -> None:
    page = as_user(operator).get("/lending/").content.decode()
    assert "PUNCTUAL_INFERENCE_AGENTS=2 make run" in page
    assert "docs/lending.md" in page
    factories.InferenceClusterFactory.create(name="serving")
    client = as_user(operator)
    assert "No orders yet" in client.get("/lending/").content.decode()
    for name in LENDING_PANELS:
        assert client.get(f"/lending/panels/{name}/").json().keys() == {"empty"}, name


def test_an_inference_cluster_can_be_chosen(operator: User, as_user: LogIn) -> None:
    for name in ("first", "second"):
        home = factories.InferenceClusterFactory.create(name=name)
        factories.InferenceServerFactory.create(inference_cluster=home, name=f"{name}-server")
    client = as_user(operator)
    assert 'data-servers="first-server"' in client.get("/lending/").content.decode()
    second = client.get("/lending/?cluster=second").content.decode()
    assert 'data-servers="second-server"' in second
    assert "?cluster=first&amp;window=24h" in second


def test_loans_and_reclaims_share_pages_newest_first(day: Day, operator: User, as_user: LogIn) -> None:
    for number in range(30):
        ReclaimOrder.objects.create(
            inference_cluster=day.inference_cluster, source=OrderSource.SCHEDULER, count=100 + number,
            wanted_by=timezone.now(), created_at=timezone.now() + timedelta(seconds=number),
        )  # fmt: skip
    client = as_user(operator)
    first = client.get("/lending/?fragment=orders&cluster=serving").content.decode()
    assert first.index("Reclaim of 129") < first.index("Reclaim of 128") < first.index("Reclaim of 110")
    assert "Loan of" not in first
    total = len(day.loans) + len(day.reclaims) + 30
    assert f"1–20 of {total} orders" in first
    assert "cluster=serving&amp;page=2" in first
    assert "Loan of" in client.get("/lending/?fragment=orders&page=3").content.decode()


def test_the_number_of_queries_does_not_grow_with_the_rows(operator: User, as_user: LogIn) -> None:
    small = build_day(periods=48, name="small")
    build_day(periods=96, name="large")
    client = as_user(operator)
    client.get("/lending/")
    for address in (
        "/lending/?window=7d",
        *(f"/lending/panels/{name}/?window=7d" for name in LENDING_PANELS),
    ):
        counts = []
        for name in ("small", "large"):
            with CaptureQueriesContext(
                connection,
            ) as queries:
                client.get(f"{address}&cluster={name}")
            counts.append(len(queries))
        assert counts[0] == counts[1] <= 50, (address, counts)
    orders = sorted(small.reclaims, key=lambda order: order.count)
    counts = []
    for order in (orders[0], orders[-1]):
        with CaptureQueriesContext(connection) as queries:
            client.get(f"/lending/orders/{order.pk}/")
        counts.append(len(queries))
    assert counts[0] == counts[1], counts


def on_loan(inference_cluster: InferenceCluster, name: str, **changes: Any) -> Any:
    return factories.InferenceServerFactory.create(
        inference_cluster=inference_cluster, cluster=inference_cluster.cluster, name=name, gpus=2,
        lending_state=LendingState.ON_LOAN, whitelist=Whitelist.TRAINING, **changes,
    )  # fmt: skip


@pytest.mark.django_db(transaction=True)
def test_a_reclaims_choice_is_explained_beside_the_alternatives(operator: User, as_user: LogIn) -> None:
    home = factories.InferenceClusterFactory.create(name="serving")
    on_loan(home, "idle-one")
    busy = on_loan(home, "busy-one")
    job = factories.JobFactory.create(name="long run", state="running", cluster=home.cluster)
    factories.GenerationFactory.create(job=job, gpus=list(busy.gpus.all()), master_server=busy)
    order, _ = reclaim_order_create(
        inference_cluster=home, order_id=uuid4(), count=2, source=OrderSource.OPERATOR, created_by="olga"
    )
    orchestrate()
    page = as_user(operator).get(f"/lending/orders/{order.pk}/").content.decode()
    assert "Idle: nothing ran on it." in page
    assert "Preemption cost" in page
    assert "1 job stopped" in page
    for method in ("improved", "lyra", "scf", "random"):
        assert f"<b>{method}</b>" in page
    assert page.count("carried out</span>") == 1
    assert f'<a href="/jobs/{job.pk}/">long run</a>' in page
    assert "idle-one: empty and back." in page
    assert "by olga" in page.lower() or ">olga<" in page


def test_an_order_says_which_jobs_it_held_back(day: Day, operator: User, as_user: LogIn) -> None:
    order = day.reclaims[0]
    address = f"/lending/orders/{order.pk}/?fragment=summary"
    assert "Jobs held back" not in as_user(operator).get(address).content.decode()
    order.outcome |= {"held_back_jobs": 1, "jobs": {day.promised.pk: "held back"}}
    order.save()
    page = as_user(operator).get(address).content.decode()
    assert "<dt>Jobs held back</dt><dd>1</dd>" in page
    assert ">held back<" in page


def test_recorded_costs_and_times_of_methods_are_shown(day: Day, operator: User, as_user: LogIn) -> None:
    order, client = day.reclaims[0], as_user(operator)
    address = f"/lending/orders/{order.pk}/?fragment=choice"
    page = client.get(address).content.decode()
    assert "Computed in" not in page
    assert page.count('class="number"><span class="quiet-text">–</span>') == 3
    for other in order.choice["alternatives"]:
        other |= {"cost": 1.25, "compute_seconds": 0.0031}
    order.save(update_fields=["choice"])
    page = client.get(address).content.decode()
    assert page.count("3.1 ms") == 4
    assert "1.25" in page
    assert '<span class="quiet-text">–</span>' not in page


def test_texts_from_users_and_schedulers_are_escaped(day: Day, operator: User, as_user: LogIn) -> None:
    Job.objects.filter(pk=day.promised.pk).update(name=HOSTILE)
    ReclaimOrder.objects.filter(pk=day.reclaims[0].pk).update(created_by=HOSTILE)
    factories.JobEventFactory.create(job=day.promised, message=HOSTILE, happened_at=day.reclaims[0].begun_at)
    client = as_user(operator)
    for address in addresses(day):
        assert HOSTILE not in client.get(address).content.decode(), address


def test_only_a_reclaim_before_the_deadline_can_break_a_promise(day: Day) -> None:
    counted = promises_touched(day.inference_cluster)
    assert (counted.touched, counted.broken) == (1, 0)
    first = min(order.begun_at for order in day.reclaims if order.begun_at)
    Job.objects.filter(pk=day.promised.pk).update(
        promise_outcome=PromiseOutcome.MISSED, deadline_at=first - timedelta(minutes=1)
    )
    assert promises_touched(day.inference_cluster).broken == 0
    Job.objects.filter(pk=day.promised.pk).update(deadline_at=first + timedelta(minutes=1))
    assert promises_touched(day.inference_cluster).broken == 1


def test_promises_without_any_reclaim_are_neither_touched_nor_broken(db: None) -> None:
    home = factories.InferenceClusterFactory.create()
    assert promises_touched(home).touched == promises_touched(home).broken == 0


def test_borrowed_time_that_held_work_is_a_share_of_what_was_borrowed(db: None) -> None:
    now = timezone.now()
    home = factories.InferenceClusterFactory.create()
    server = on_loan(home, "lent", lending_changed_at=now - timedelta(hours=2))
    generation = factories.GenerationFactory.create(job=factories.JobFactory.create())
    Assignment.objects.create(
        generation=generation, job=generation.job, gpu=server.gpus.first(), rank=9,
        state=AssignmentState.RELEASED,
        held_at=now - timedelta(hours=3), released_at=now - timedelta(minutes=30),
    )  # fmt: skip
    use = borrowed_use(home, now - timedelta(hours=1), now)
    assert use.borrowed_gpu_seconds == pytest.approx(2 * 3600)
    assert use.share == pytest.approx(0.25)


def test_the_caption_names_an_emulated_load(day: Day, operator: User, as_user: LogIn) -> None:
    client = as_user(operator)
    address = "/lending/panels/inference-usage/?window=6h"
    assert "the load is an emulated one" in client.get(address).json()["note"]
    for server in day.servers:
        server.gpus.update(emulated=False)
    day.inference_cluster.usage_samples.update(source="measured")
    note = client.get(address).json()["note"]
    assert "emulated" not in note
    assert "64 GPUs" in note


def test_the_caption_names_every_source_of_the_samples(day: Day, operator: User, as_user: LogIn) -> None:
    def note() -> str:
        return str(as_user(operator).get("/lending/panels/inference-usage/?window=6h").json()["note"])

    assert note().endswith("Source of the samples: emulated: a wave with bursts, drawn for a test.")
    samples = day.inference_cluster.usage_samples
    newest = samples.latest("period_ends_at")
    samples.filter(pk=newest.pk).update(source="measured")
    assert note().endswith("emulated: a wave with bursts, drawn for a test; measured.")
    samples.exclude(pk=newest.pk).update(source="")
    assert note().endswith("Source of the samples: not stated; measured."), (
        "what nobody said is no measurement"
    )


def test_many_samples_are_averaged_and_the_worst_shortfall_is_kept(operator: User, as_user: LogIn) -> None:
    now = timezone.now()
    home = factories.InferenceClusterFactory.create(name="quick", period_seconds=10.0)
    factories.InferenceServerFactory.create(inference_cluster=home)
    UsageSample.objects.bulk_create(
        UsageSample(
            inference_cluster=home, period_ends_at=now - timedelta(seconds=10 * step), usage=0.5,
            shortfall_servers=3 if step == 700 else 0,
        )
        for step in range(1300)
    )  # fmt: skip
    drawn = as_user(operator).get("/lending/panels/inference-usage/?window=6h").json()
    traces = {trace["name"]: trace for trace in drawn["figure"]["data"]}
    assert 400 <= len(traces["Usage"]["x"]) <= 601
    assert "3 servers missing" in traces["Shortfall"]["customdata"][0]
    assert "mean of 3 periods" in drawn["note"]


def test_combined_usage_counts_all_gpus_and_training_its_own(operator: User, as_user: LogIn) -> None:
    now = timezone.now()
    home = factories.InferenceClusterFactory.create(name="serving")
    for number in range(2):
        factories.InferenceServerFactory.create(
            inference_cluster=home, cluster=home.cluster, name=f"serving-{number}", gpus=4,
            created_at=now - timedelta(days=1),
        )  # fmt: skip
    UsageSample.objects.create(inference_cluster=home, period_ends_at=now, usage=0.25)
    UtilisationSample.objects.create(
        cluster=home.cluster, taken_at=now - timedelta(seconds=20), total=8, promised=4, idle=4
    )
    page = as_user(operator).get("/lending/?fragment=combined&window=1h").content.decode()
    assert "Both clusters were used to <b>37.5%</b>, training alone to <b>50.0%</b>" in page
    assert "Nothing was on loan in this time." in page


def test_counters_come_from_the_orders_of_the_last_day(day: Day, operator: User, as_user: LogIn) -> None:
    ReclaimOrder.objects.create(
        inference_cluster=day.inference_cluster, source=OrderSource.SCHEDULER, count=1,
        wanted_by=timezone.now(),
        created_at=timezone.now() - timedelta(days=2), state=ReclaimState.RETURNED,
        begun_at=timezone.now() - timedelta(days=2), returned_at=timezone.now() - timedelta(days=1, hours=1),
    )  # fmt: skip
    page = as_user(operator).get("/lending/?fragment=standing").content.decode()
    returned = [order for order in day.reclaims if order.returned_at]
    worst = max(order.seconds_to_return() or 0.0 for order in returned)
    assert f"worst {worst:.0f} s" in page
    assert f"none of {len(returned)} late" in page
    assert "of 1 promised job that reclaims ever touched" in page
    assert json.dumps({"lending": False}) in page.replace("&quot;", '"')
