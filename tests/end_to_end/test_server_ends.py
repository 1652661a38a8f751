"""A server that leaves at a known time: its workers are gone before, and their job continues elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from launch import Platform
from punctual.client import Client, Job
from tests.end_to_end.conftest import nothing_is_wrong, wait_for, wait_until
from tests.end_to_end.test_kills import ENDLESS, submit, wait_for_progress, worker_pids

# Slow: the server stays for longer than leaving may take.
pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(400)]

Rows = Callable[..., list[dict[str, Any]]]
#: Shorter than the longest time that leaving takes, so that the job must leave at once.
STAYS_FOR = timedelta(seconds=100)


@pytest.fixture
def job(person: Client, rows: Rows) -> Iterator[Job]:
    """Return a job in the middle of its run, with workers on both servers."""
    running = submit(person, "leaving", ENDLESS)
    wait_for(
        running,
        lambda job: job.state == "running" and job.iterations_done > 10 and len(servers_of(rows, job)) == 2,
        "training on both servers",
        seconds=240,
    )
    try:
        yield running
    finally:
        with suppress(Exception):
            running.cancel()
        nothing_is_wrong(rows)


def servers_of(rows: Rows, job: Job) -> set[str]:
    """Return the servers on which the job has GPUs, including those that its workers still have to clear."""
    names = rows(
        "select distinct s.name from scheduling_assignment a join cluster_gpu g on g.id = a.gpu_id join "
        "cluster_server s on s.id = g.server_id where a.job_id = %s and a.state <> 'released'",
        job.id,
    )
    return {row["name"] for row in names}


def held_on(rows: Rows, job: Job, server: str) -> int:
    """Return how many GPUs of the server the job holds."""
    (found,) = rows(
        "select count(*) from scheduling_assignment a join cluster_gpu g on g.id = a.gpu_id join "
        "cluster_server s on s.id = g.server_id where a.job_id = %s and a.state = 'held' and s.name = %s",
        job.id,
        server,
    )
    return int(found["count"])


def test_a_job_leaves_a_server_before_its_end_without_losing_work(
    running_platform: Platform, operator: Client, rows: Rows, job: Job
) -> None:
    processes, workers = set(worker_pids(running_platform, "node-2")), held_on(rows, job, "node-2")
    assert len(processes) >= workers > 0
    before = job.refresh().iterations_done
    server = operator.cluster.server("node-2")
    end = datetime.now(UTC) + STAYS_FOR
    operator.cluster.set_end(server, end)
    try:
        wait_until(lambda: servers_of(rows, job) == {"node-1"}, "it is on the other server alone", seconds=95)
        assert datetime.now(UTC) < end
        left = processes & set(worker_pids(running_platform, "node-2"))  # warm workers that wait for work
        assert len(processes) - len(left) >= workers, "its processes are gone"
        wait_for_progress(job)
        started = rows(
            "select start_iteration from scheduling_generation where job_id = %s and live_at is not null "
            "order by number desc limit 1",
            job.id,
        )[0]["start_iteration"]
        assert started >= before, "nothing that was done is done again"
        wait_until(lambda: datetime.now(UTC) > end, "the end has come", seconds=STAYS_FOR.total_seconds())
        assert servers_of(rows, job) == {"node-1"}
        assert job.refresh().state == "running"
    finally:
        operator.cluster.set_end(server, None)
    wait_until(lambda: "node-2" in servers_of(rows, job), "the server is used again", seconds=120)
