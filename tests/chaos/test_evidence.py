"""The evidence of a broken promise: from real rows, in a form that a person can read and replay."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg2
import psycopg2.extras
import pytest
from django.db import connection

from scheduling.choices import JobState, PromiseOutcome
from scheduling.core.question.recording import pack_snapshot, unpack_snapshot
from scheduling.core.question.snapshot import ServerSnapshot, Snapshot
from tests.chaos.evidence import Deed, keep
from tests.factories import DecisionFactory, GenerationFactory, JobEventFactory, JobFactory


def rows(sql: str, *parameters: Any) -> list[dict[str, Any]]:
    """Read rows as `Scene.rows` does: without Django, which returns JSON as text."""
    with psycopg2.connect(**connection.get_connection_params()) as other:
        with other.cursor(cursor_factory=psycopg2.extras.RealDictCursor) as cursor:
            cursor.execute(sql, parameters)
            return [dict(row) for row in cursor.fetchall()]


@pytest.mark.django_db(transaction=True)
def test_a_missed_promise_has_a_page_with_ordered_events(tmp_path: Path) -> None:
    job = JobFactory.create(state=JobState.RUNNING, promise_outcome=PromiseOutcome.MISSED)
    moment = job.submitted_at
    GenerationFactory.create(
        job=job, number=3, created_at=moment + timedelta(seconds=4), reason="its plan begins"
    )
    JobEventFactory.create(
        job=job, kind="late", message="Its deadline has passed.", happened_at=moment + timedelta(seconds=9)
    )
    asked = Snapshot(now=0.0, next_slot_at=2.0, servers=(ServerSnapshot(id="node-1", gpus=4),), jobs=())
    decision = DecisionFactory.create(
        cluster=job.cluster,
        decided_at=moment + timedelta(seconds=2),
        pass_seconds=0.25,
        snapshot=pack_snapshot(asked),
        summary={"at_risk": [job.pk], "changes": [], "verdicts": []},
    )
    DecisionFactory.create(
        cluster=job.cluster, decided_at=moment - timedelta(hours=1), snapshot=pack_snapshot(asked)
    )
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "web.log").write_text("a line\n")

    folder = tmp_path / "kept"
    keep(rows, logs, folder, [job.pk], [Deed(moment + timedelta(seconds=6), "killed the planner's child")])

    page = (folder / "promises" / f"{job.pk}.txt").read_text()
    texts = [
        f"at risk: {job.pk}", "created its plan begins", "killed the planner's child",
        "late: Its deadline has passed.",
    ]  # fmt: skip
    assert all(text in page for text in texts)
    assert sorted(page.index(text) for text in texts) == [page.index(text) for text in texts]
    assert "pass 0.25 s" in page
    (question,) = (folder / "snapshots").iterdir()
    assert question.stem == f"decision-{decision.pk}"
    assert unpack_snapshot(question.read_bytes()) == asked
    (row,) = [
        json.loads(line) for line in (folder / "rows" / "scheduling_job.jsonl").read_text().splitlines()
    ]
    assert row["id"] == job.pk
    assert (folder / "logs" / "web.log").read_text() == "a line\n"
