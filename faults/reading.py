"""Reads the data of the invariants: from the database, and from agents' disks."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psycopg2
import psycopg2.extras

from faults import invariants
from faults.invariants import Violation

#: Queries the platform's database: SQL and its parameters, returns rows by column.
Rows = Callable[..., list[dict[str, Any]]]

_JOBS = """
    select j.id, j.name, j.state, j.iterations_done, j.max_iterations, j.failure, j.seed, j.deadline_at,
        j.promise_outcome, j.void_reason, j.sample_order_digest, j.global_batch_size, j.submitted_at,
        j.finished_at, j.last_generation, j.function_version_id as function
    from scheduling_job j where j.id = any(%s) order by j.submitted_at
"""
_STARTS = """
    select job_id as job, number, start, live_at from scheduling_generation
    where job_id = any(%s) and purpose = 'training' and live_at is not null
"""
_POINTS = """
    select c.job_id as job, c.generation, c.iteration, c.world_size, c.complete_at, count(s.id) as shards
    from scheduling_checkpoint c left join scheduling_stateshard s on s.checkpoint_id = c.id
    where c.job_id = any(%s) group by c.id
"""
_TWO_OWNERS = """
    select gpu_id from scheduling_assignment where state in ('held', 'clearing')
    group by gpu_id having count(distinct job_id) > 1
"""
_BOTH_LIVE = """
    select a.job_id, a.number, b.number as other from scheduling_generation a join scheduling_generation b
    on a.job_id = b.job_id and a.number < b.number and a.purpose = 'training' and b.purpose = 'training'
    where a.live_at is not null and b.live_at is not null and a.job_id = any(%s)
        and (a.retired_at is null or (%s and b.live_at < a.retired_at))
"""
_HELD_BY_NOBODY = """
    select j.id, j.state from scheduling_job j join scheduling_assignment a on a.job_id = j.id
    where j.state in ('completed', 'failed', 'cancelled', 'declined') and a.state in ('held', 'waiting')
"""
_SILENCES = """
    select s.name as server, c.fence_seconds as lease_seconds,
        extract(epoch from a.fenced_at - a.last_report_at)::float as silent_seconds
    from cluster_agent a join cluster_server s on s.id = a.server_id
    join cluster_cluster c on c.id = s.cluster_id
    where a.fenced_at is not null and a.revoked_at is null and a.last_report_at <= a.fenced_at
"""
_LOGS = """
    select job_id, generation, rank, string_agg(text, '' order by "offset") as text
    from scheduling_logchunk where job_id = any(%s) group by 1, 2, 3
"""
_GPUS = """
    select g.job_id, g.number, a.rank, s.name || ' GPU ' || gpu.index as gpu
    from scheduling_assignment a join scheduling_generation g on g.id = a.generation_id
    join cluster_gpu gpu on gpu.id = a.gpu_id join cluster_server s on s.id = gpu.server_id
    where g.job_id = any(%s) and g.purpose = 'training'
"""
#: A warning that a state is older than its promise assumes is no defect during faults: copies are late, or
#: their reports are lost. The promise shows the consequences.
_SET_ASIDE = """
    select job_id, message from scheduling_incident where job_id = any(%s) and kind <> 'too_old'
"""


def reader(database_url: str) -> Rows:
    """Return a reader of the database. Each query uses a new connection, since the database may restart in
    between. It raises psycopg2.OperationalError while the database does not answer."""

    def rows(sql: str, *parameters: Any) -> list[dict[str, Any]]:
        connection = psycopg2.connect(database_url.replace("postgres://", "postgresql://", 1))
        try:
            with connection, connection.cursor(cursor_factory=psycopg2.extras.RealDictCursor) as cursor:
                cursor.execute(sql, parameters)
                return [dict(row) for row in cursor.fetchall()]
        finally:
            connection.close()

    return rows


def jobs_of(rows: Rows, jobs: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows of these jobs."""
    return rows(_JOBS, list(jobs))


def in_the_rows(rows: Rows, jobs: Sequence[str], *, times_hold: bool = True) -> list[Violation]:
    """Return violations of the invariants that must hold in the database at every moment.

    ``times_hold``: False if the clocks of row timestamps jumped; the timestamps then give no order.
    """
    found = [
        Violation("no GPU with two owners", f"GPU {row['gpu_id']} has in the database")
        for row in rows(_TWO_OWNERS)
    ]
    found += [
        Violation(
            "nobody trained twice",
            f"job {row['job_id']}: generations {row['number']} and {row['other']} were both live",
        )
        for row in rows(_BOTH_LIVE, list(jobs), times_hold)
    ]
    starts = rows(_STARTS, list(jobs))
    if times_hold:
        found += invariants.given_up_within_a_lease(rows(_SILENCES))
    else:
        starts = [row | {"live_at": None} for row in starts]
    found += invariants.incomplete_starts(starts, rows(_POINTS, list(jobs)))
    return found


def after_the_calm(
    rows: Rows, jobs: Sequence[str], agents: Path | None, *, times_hold: bool = True
) -> list[Violation]:
    """Return violations by these jobs once they had the time to end.

    ``agents``: the folder of local agents' data; None if there are none.
    """
    violations = in_the_rows(rows, jobs, times_hold=times_hold)
    job_records = jobs_of(rows, jobs)
    violations += invariants.lost_jobs(job_records)
    violations += invariants.different_orders(job_records)
    violations += [
        Violation("no GPU held for nobody", f"job {row['id']} is {row['state']} and holds one")
        for row in rows(_HELD_BY_NOBODY)
    ]
    violations += [
        Violation("no job set aside", f"job {row['job_id']}: {row['message']}")
        for row in rows(_SET_ASIDE, list(jobs))
    ]
    gpus = {(row["job_id"], row["number"], row["rank"]): row["gpu"] for row in rows(_GPUS, list(jobs))}
    lines = [(row["job_id"], row["generation"], row["rank"], row["text"]) for row in rows(_LOGS, list(jobs))]
    steps = invariants.steps_of(lines, gpus)
    violations += invariants.trained_twice(steps) + invariants.gpus_used_by_two(steps)
    if agents is not None:
        violations += _in_the_journals(rows, agents)
    return violations


def _in_the_journals(rows: Rows, agents: Path) -> list[Violation]:
    memories = {}
    for file in sorted(agents.glob("*/memory.json")):
        memories[file.parent.name] = json.loads(file.read_text())
    (cluster,) = rows("select max(epoch) as epoch from cluster_cluster")
    last = {
        row["id"]: row["last_generation"] for row in rows("select id, last_generation from scheduling_job")
    }
    return invariants.commands_from_nowhere(memories, cluster["epoch"], last)
