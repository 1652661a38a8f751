"""A bad item of a report is dropped with a note and affects no neighbouring item, lease or job."""

from __future__ import annotations

import itertools
import json
import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cluster.models import Agent, Cluster, Server
from scheduling.models import Artifact, Checkpoint, Generation, Job, JobMetric, LogChunk
from scheduling.services.agents import reports
from scheduling.services.generations.progress import MAXIMUM_LOG_BYTES
from scheduling.services.long_work.housekeeping import TRIMMED, trim_logs
from tests.control_plane import agent_api
from tests.control_plane.agent_api import busy_server, event, log_piece, metric, send, training_job, worker
from tests.factories import LogChunkFactory
from tests.plugins.examples import examples

pytestmark = [pytest.mark.django_db, pytest.mark.urls("config.urls_agents")]

SURROGATE = "\ud800"
_iterations = itertools.count(10)


@pytest.fixture
def server() -> Server:
    return busy_server("node-a")


@pytest.fixture
def hostile(server: Server) -> Generation:
    return training_job(server, 0)[1]


@pytest.fixture
def neighbour(server: Server) -> Generation:
    return training_job(server, 1)[1]


def lease_is_old(server: Server) -> None:
    Agent.objects.filter(server=server).update(last_report_at=timezone.now() - timedelta(hours=1))


def lease_is_fresh(server: Server) -> bool:
    return Agent.objects.get(server=server).silent_seconds(timezone.now()) < 600


def send_beside_a_neighbour(
    server: Server, hostile: Generation, neighbour: Generation, part: str, items: list[Any]
) -> dict[str, Any]:
    """Send items with the neighbour's in every part of the same report; the neighbour's must arrive. Return
    the answer."""
    lease_is_old(server)
    iteration = next(_iterations)
    stored = event(neighbour, "shard_stored", iteration=iteration)
    report: dict[str, list[Any]] = {
        "workers": [worker(hostile), worker(neighbour)],
        "events": [stored],
        "metrics": [metric(neighbour, iteration=iteration)],
        "logs": [log_piece(neighbour, offset=iteration)],
    }
    report[part] = [*items, *report[part]]
    answer = send(server, report)
    assert answer.status_code == 200, answer.content
    assert lease_is_fresh(server)
    body: dict[str, Any] = answer.json()
    assert stored["id"] in body["acknowledged"]
    assert not body["deferred"]
    for model in (JobMetric, Checkpoint):
        assert model.objects.filter(job_id=neighbour.job_id, iteration=iteration).exists()
    assert LogChunk.objects.filter(job_id=neighbour.job_id, offset=iteration).exists()
    assert not neighbour.workers.filter(gone=True).exists()
    return body


BAD = {
    "NUL in a metric's name": ("metrics", lambda g: metric(g, values={"a\0b": 1.0})),
    "a surrogate in a metric's name": ("metrics", lambda g: metric(g, values={SURROGATE: 1.0})),
    "a direction mark in a name": ("metrics", lambda g: metric(g, values={"a\u202eb": 1.0})),
    "thousands of names": ("metrics", lambda g: metric(g, values={f"m{n}": 1.0 for n in range(5000)})),
    "a huge value": ("metrics", lambda g: metric(g, values={"loss": 10**350})),
    "not a number": ("metrics", lambda g: metric(g, values={"loss": float("nan")})),
    "a value that is no number": ("metrics", lambda g: metric(g, values={"loss": [1]})),
    "an iteration beyond the job": ("metrics", lambda g: metric(g, iteration=agent_api.ITERATIONS + 1)),
    "a generation of nine digits and more": ("metrics", lambda g: {**metric(g), "generation": 2**40}),
    "a rate beyond reason": ("metrics", lambda g: metric(g, iterations_per_second=1e300)),
    "a job's name with NUL": ("metrics", lambda g: {**metric(g), "job": "a\0"}),
    "no pause": ("events", lambda g: event(g, "first_iteration", pause_seconds=None)),
    "a pause for ever": ("events", lambda g: event(g, "first_iteration", pause_seconds=1e15)),
    "a level without numbers": ("events", lambda g: event(g, "profile_level", iterations_per_second=None)),
    "a level of 10^-30": ("events", lambda g: event(g, "profile_level", iterations_per_second=1e-30)),
    "memory below nothing": ("events", lambda g: event(g, "profile_level", host_memory_bytes=-1)),
    "a state below nothing": ("events", lambda g: event(g, "profile_level", state_bytes=-1)),
    "a state of 2^60 bytes": ("events", lambda g: event(g, "profile_level", state_bytes=2**60)),
    "a metric of no memory": ("metrics", lambda g: metric(g, host_memory_bytes="much")),
    "more GPUs than there are": ("events", lambda g: event(g, "profile_level", gpus=2**40)),
    "an artifact's name of 201": (
        "events",
        lambda g: event(
            g, "completed", artifacts=[{"name": "n" * 201, "uri": "u", "bytes": 1, "sha256": "0" * 64}]
        ),
    ),
    "an artifact that leads out": (
        "events",
        lambda g: event(
            g, "completed", artifacts=[{"name": "../x", "uri": "u", "bytes": 1, "sha256": "0" * 64}]
        ),
    ),
    "a long digest": ("events", lambda g: event(g, "completed", sample_order_digest="d" * 65)),
    "an iteration of 2^60": ("events", lambda g: event(g, "shard_stored", iteration=2**60)),
    "an unknown kind": ("events", lambda g: {**event(g, "failed"), "kind": "surprise"}),
    "an event without id": ("events", lambda g: {**event(g, "failed"), "id": 7}),
    "a log of a rank that is not there": ("logs", lambda g: log_piece(g, rank=5)),
    "an offset below zero": ("logs", lambda g: log_piece(g, offset=-1)),
    "an unknown phase": ("workers", lambda g: worker(g, phase="dancing")),
    "a worker on another GPU": ("workers", lambda g: worker(g, gpu_index=3)),
    "no object at all": ("metrics", lambda g: None),
}


@pytest.mark.parametrize("part", ["workers", "events", "metrics", "logs"])
def test_a_bad_item_is_refused_and_nothing_else(
    server: Server, hostile: Generation, neighbour: Generation, part: str
) -> None:
    bad = {name: make(hostile) for name, (of_part, make) in BAD.items() if of_part == part}
    answer = send_beside_a_neighbour(server, hostile, neighbour, part, list(bad.values()))
    refused = {list(bad)[item["index"]] for item in answer["refused"] if item["part"] == part}
    assert refused == set(bad)
    assert len(answer["refused"]) == len(bad)
    job = Job.objects.get(pk=hostile.job_id)
    assert (job.state, job.iterations_done, job.final_metrics) == ("running", 0, None)
    assert not Artifact.objects.exists()


def test_refused_item_is_acknowledged_and_noted_in_job_history(
    server: Server, hostile: Generation, neighbour: Generation
) -> None:
    bad = event(hostile, "first_iteration", pause_seconds=1e15)
    answer = send_beside_a_neighbour(server, hostile, neighbour, "events", [bad])
    assert bad["id"] in answer["acknowledged"]
    refusal = hostile.job.events.get(kind="report_refused")
    assert "pause_seconds" in refusal.message
    assert "3600" in refusal.message
    assert not neighbour.job.events.filter(kind="report_refused").exists()


def test_a_flood_of_bad_items_leaves_a_bounded_history(server: Server, hostile: Generation) -> None:
    for start in range(0, 100, 25):
        send(server, {"metrics": [metric(hostile, iteration=10**9 + start + n) for n in range(25)]})
    assert hostile.job.events.filter(kind="report_refused").count() == 20


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"[" * 20_000, id="nested"),
        pytest.param(b"no json", id="no json"),
        pytest.param(b'{"workers": 1}', id="no report"),
        pytest.param(b"\xff\xfe", id="no text"),
        pytest.param(b'{"x": ' + b"9" * 10_000 + b"}", id="a long number"),
        pytest.param(b" " * (33 << 20), id="too large"),
    ],
)
def test_malformed_report_gives_4xx_and_renews_the_lease(server: Server, settings: Any, body: bytes) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 32 << 20
    lease_is_old(server)
    answer = send(server, body)
    assert answer.status_code in (400, 413)
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json()["lease_seconds"] > 0
    assert lease_is_fresh(server)


def test_huge_number_spoils_only_its_own_item(
    server: Server, hostile: Generation, neighbour: Generation
) -> None:
    good = json.dumps(metric(neighbour))
    bad = json.dumps(metric(hostile)).replace("1.5", "9" * 10_000)
    body = f'{{"sequence": 10000000, "boot_id": "b", "workers": [], "metrics": [{bad}, {good}]}}'
    answer = send(server, body.encode())
    assert answer.status_code == 200
    assert [item["index"] for item in answer.json()["refused"]] == [0]
    assert JobMetric.objects.filter(job_id=neighbour.job_id).count() == 1


def test_a_fenced_agents_unreadable_report_renews_nothing(server: Server) -> None:
    Agent.objects.filter(server=server).update(fenced_at=timezone.now())
    assert send(server, b"no json").status_code == 409


def test_gpus_are_not_taken_for_free_from_a_list_that_cannot_be_read(
    server: Server, hostile: Generation
) -> None:
    assert send(server, {"workers": [worker(hostile)]}).status_code == 200
    hostile.assignments.update(state="clearing")
    send(server, {"desired_version": 1, "workers": [worker(hostile, phase="?")]})
    assert hostile.assignments.get().state == "clearing"
    send(server, {"desired_version": 1, "workers": []})
    assert hostile.assignments.get().state == "released"


def test_a_version_that_does_not_exist_yet_was_not_obeyed(server: Server) -> None:
    send(server, {"desired_version": 2**50})
    assert Agent.objects.get(server=server).desired_version_seen == server.desired_version


@pytest.mark.django_db(transaction=True)
def test_report_does_not_wait_for_a_lock_on_the_cluster(
    server: Server, hostile: Generation, neighbour: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planner that hangs during a commit must not cost any server its lease."""
    monkeypatch.setattr(reports, "LONGEST_LOCK_WAIT_SECONDS", 0.1)
    holding, release = threading.Event(), threading.Event()

    def hold() -> None:
        try:
            with transaction.atomic():
                Cluster.objects.select_for_update().get(pk=server.cluster_id)
                holding.set()
                release.wait(60)
        finally:
            connections.close_all()

    lease_is_old(server)
    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert holding.wait(60)
        stored = event(neighbour, "shard_stored")
        report = {"workers": [worker(neighbour)], "events": [stored], "metrics": [metric(neighbour)]}
        answer = send(server, report)
    finally:
        release.set()
        holder.join()
    assert answer.status_code == 200
    assert answer.json()["deferred"] == ["workers", "events"]
    assert answer.json()["acknowledged"] == []
    assert lease_is_fresh(server)
    assert JobMetric.objects.filter(job_id=neighbour.job_id).exists(), "what needs no such row is taken"
    again = send(server, report).json()
    assert (again["acknowledged"], again["deferred"]) == ([stored["id"]], [])


def test_a_log_that_outgrew_its_allowance_says_where_it_begins(hostile: Generation) -> None:
    piece = "é" * (1 << 19)  # two bytes each
    for place in range(11):
        LogChunkFactory.create(job=hostile.job, offset=place << 20, text=f"{place}\n{piece}")
    for _ in range(2):
        trim_logs(timezone.now())
        texts = list(LogChunk.objects.filter(job=hostile.job).order_by("id").values_list("text", flat=True))
        assert texts[0].startswith(TRIMMED)
        assert sum(text.count("older output is dropped") for text in texts) == 1
        assert sum(len(text.encode()) for text in texts) <= MAXIMUM_LOG_BYTES + len(TRIMMED)


# --- any item whatever --------------------------------------------------------------------------------------

_texts = st.text(max_size=8) | st.sampled_from(["\0", SURROGATE, "x" * 300, "\u202e", "é" * 101, "-1"])
_numbers = (
    st.integers(-(2**70), 2**70)
    | st.sampled_from([10**400, 2**31, 2**53, 2**63, -1, 1e308, 1e-320])
    | st.floats()
)
_junk = st.recursive(
    st.none() | st.booleans() | _numbers | _texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_texts, inner, max_size=4),
    max_leaves=8,
)
#: Deeper bodies are refused as a whole; an agent passes none on.
_deep = st.integers(1, 60).map(lambda depth: json.loads("[" * depth + "]" * depth))
_wide = st.integers(101, 3000).map(lambda width: {f"name{n}": n for n in range(width)})
_anything = _junk | _deep | _wide


def _near(template: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Return the template with some fields replaced by arbitrary values and others removed."""
    names = sorted(template)
    return st.tuples(
        st.dictionaries(st.sampled_from(names), _anything, max_size=3),
        st.sets(st.sampled_from(names), max_size=1),
    ).map(lambda change: {k: v for k, v in {**template, **change[0]}.items() if k not in change[1]})


def test_how_copies_are_sent_is_kept_for_people_if_it_can_be(server: Server, hostile: Generation) -> None:
    good = event(hostile, "copy_traffic", what_a_newer_worker_adds="x" * 1000)
    bad = event(hostile, "copy_traffic", every=0)
    answer = send(server, {"events": [good, bad]}).json()
    assert [item["index"] for item in answer["refused"]] == [1]
    hostile.refresh_from_db()
    assert hostile.copy_traffic == agent_api.EVENT_FIELDS["copy_traffic"], "what is known of it, and no more"


@pytest.mark.parametrize("part", ["workers", "events", "metrics", "logs", "inventory"])
@settings(suppress_health_check=list(HealthCheck), max_examples=examples(0.3))
@given(data=st.data())
def test_whatever_an_item_is_its_neighbours_arrive(
    server: Server, hostile: Generation, neighbour: Generation, part: str, data: st.DataObject
) -> None:
    templates = {
        "workers": [worker(hostile, exit={"code": 1, "signal": None, "reason": "exited", "message": ""})],
        "events": [event(hostile, kind) for kind in agent_api.EVENT_FIELDS],
        "metrics": [metric(hostile)],
        "logs": [log_piece(hostile)],
        "inventory": [{"gpus": [{"index": 0, "kind": "emulated-a100", "uuid": "u"}], "hostname": "h"}],
    }
    items = data.draw(st.lists(_anything | st.sampled_from(templates[part]).flatmap(_near), max_size=12))
    with transaction.atomic():
        point = transaction.savepoint()
        if part == "inventory":
            for item in items[:3]:
                assert send(server, {"inventory": item, "workers": [worker(neighbour)]}).status_code == 200
        else:
            send_beside_a_neighbour(server, hostile, neighbour, part, items)
        # Every example begins in the same world; what it stored must be readable.
        list(JobMetric.objects.values_list("values", flat=True))
        transaction.savepoint_rollback(point)
    assert connection.is_usable()
