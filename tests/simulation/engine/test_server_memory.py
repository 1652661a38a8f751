"""Host memory in simulations: levels that do not fit are left out, by the rules of the live platform."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest

from simulation.engine.outside.server_memory import server_memory_bytes
from simulation.engine.run import Simulation
from simulation.outcome import RunOutcome
from simulation.workloads.workload import Workload
from tests.simulation.engine.worlds import Job, settings, workload

LINEAR = {1: 1.0, 2: 2.0, 4: 4.0}
GB = 1e9


def needing(gigabytes: dict[int, float], *jobs: Job) -> Workload:
    """Return the jobs with this memory for each worker, by number of workers."""
    base = workload(jobs)
    profiles = []
    for profile in base.profiles:
        points = profile.by_kind["gpu"]
        needs = np.array([gigabytes[count] * GB for count in points.gpus.tolist()])
        profiles.append(replace(profile, by_kind={"gpu": replace(points, memory_bytes=needs)}))
    return replace(base, profiles=tuple(profiles))


def run(trace: Workload, policy: str = "punctual", **facts: Any) -> RunOutcome:
    return Simulation(trace, settings(policy, 2, 4, **facts)).run()


def most_gpus(outcome: RunOutcome) -> int:
    return int(outcome.allocations.gpus.max(initial=0))


@pytest.mark.parametrize("policy", ["punctual", "elasticflow", "lyra", "tiresias"])
def test_a_job_runs_on_the_levels_that_fit_into_the_servers_memory(policy: str) -> None:
    """Each GPU has 10 GB: a worker alone needs 12, two need 8 each, four 16 each."""
    job = needing({1: 12.0, 2: 8.0, 4: 16.0}, Job(0.0, 40.0, curve=LINEAR, requested_gpus=2))
    outcome = run(job, policy, server_memory_bytes=(40 * GB, 40 * GB))
    assert set(outcome.allocations.gpus.tolist()) == {0, 2}
    assert outcome.jobs.completed_at[0] == pytest.approx(20.0, abs=1.5)
    free = run(job, policy)
    assert most_gpus(free) == (2 if policy == "tiresias" else 4), "without a limit all levels fit"


def test_a_job_that_fits_nowhere_is_declined_with_the_live_reason() -> None:
    job = needing({1: 12.0, 2: 12.0, 4: 12.0}, Job(0.0, 40.0, 500.0, curve=LINEAR))
    run_settings = replace(
        settings("punctual", 2, 4, server_memory_bytes=(40 * GB, 40 * GB)), check_invariants=False
    )
    reasons: list[str] = []
    outcome = Simulation(
        job,
        run_settings,
        watch=lambda run, pool, answer: reasons.extend(verdict.reason for verdict in answer.verdicts),
    ).run()
    assert outcome.jobs.reason_code == ("no_levels",)
    assert "host memory, more than every server has for each GPU" in reasons[0]


def test_smallest_server_bounds_worker_memory_unless_left_out() -> None:
    job = needing(dict.fromkeys(LINEAR, 8.0), Job(0.0, 40.0, 500.0, curve=LINEAR))
    sizes = (40 * GB, 20 * GB)
    assert not any(run(job, server_memory_bytes=sizes).jobs.promised)
    left_out = run(job, server_memory_bytes=sizes, worker_memory_bytes=8 * GB)
    assert all(left_out.jobs.promised)
    assert left_out.cluster.gpus.max() == 4, "the small server is not used"


def test_nothing_changes_where_all_fits() -> None:
    jobs = [Job(float(at), 40.0, at + 60.0, curve=LINEAR) for at in range(6)]
    plain, limited = (
        run(workload(jobs)),
        run(needing(dict.fromkeys(LINEAR, 8.0), *jobs), server_memory_bytes=(40 * GB, 40 * GB)),
    )
    assert plain.jobs.completed_at.tolist() == limited.jobs.completed_at.tolist()


def test_server_memory_is_read_from_a_file(tmp_path) -> None:
    file = tmp_path / "memory.csv"
    file.write_text("server,memory_gb\n1,64\n0,512\n")
    assert server_memory_bytes(str(file), 3) == (512 * GB, 64 * GB, inf)
