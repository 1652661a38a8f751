"""From any live state, simulated jobs begin on existing GPUs, one job per GPU, and keep their owned GPUs."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as some

from simulation.live.state import LiveJob, LiveState
from simulation.live.under_way import under_way
from simulation.services.asking import StudyRequest, runs_asked

GPUS = 4


@some.composite
def states(draw: Any) -> LiveState:
    """Draw jobs on distinct GPUs of one to three owned servers and up to three borrowed servers."""
    own, lent, others = (draw(some.integers(low, 3)) for low in (1, 0, 0))
    places = [(server, gpu) for server in range(own + lent + others) for gpu in range(GPUS)]
    free = draw(some.permutations(places))
    jobs: list[LiveJob] = []
    while free:
        size = draw(some.sampled_from([0, 1, 2, 4, 8]))
        chosen, free = free[:size], free[max(1, size) :]
        jobs.append(_job(f"job{len(jobs)}", tuple(chosen), own, pause=draw(some.floats(0.0, 9.0))))
    return LiveState("2026-01-01T00:00:00+00:00", "gpu", own, GPUS, tuple(jobs), servers_on_loan=lent)


def _job(name: str, places: tuple[tuple[int, int], ...], own: int, pause: float) -> LiveJob:
    marks = tuple(server >= own for server, _ in places)
    levels = tuple((gpus, float(gpus), 7.0) for gpus in (1, 2, 4, 8))
    return LiveJob(
        name,
        "model",
        64,
        "best_effort",
        -1.0,
        None,
        100.0,
        levels,
        places,
        flexible=marks,
        pause_left_seconds=pause,
    )


@given(state=states(), servers=some.integers(1, 4), lent=some.integers(0, 4))
def test_jobs_begin_on_existing_gpus_with_one_job_each(state: LiveState, servers: int, lent: int) -> None:
    begun = under_way(state, servers, GPUS, lent_servers=lent)
    addresses = [address for running in begun for address in running.addresses]
    assert len(set(addresses)) == len(addresses)
    assert all(0 <= address < (servers + min(lent, state.servers_on_loan)) * GPUS for address in addresses)
    for running in begun:
        assert len(running.flexible) in (0, len(running.addresses))
        assert running.pause_left_seconds == 0.0 or running.addresses


@given(state=states(), lent=some.integers(0, 4))
def test_job_keeps_its_own_gpus_unless_their_number_is_unmeasured(state: LiveState, lent: int) -> None:
    jobs = sorted(state.jobs, key=lambda job: job.id)
    for job, running in zip(jobs, under_way(state, state.servers, GPUS, lent_servers=lent), strict=True):
        own = [place for place in job.placement if place[0] < state.servers]
        owned = [address for address in running.addresses if address < state.servers * GPUS]
        if len(owned) < len(own):
            assert len(own) not in {1, 2, 4, 8}
        if running.addresses and len(running.addresses) < len(job.placement):
            assert running.pause_left_seconds >= 7.0, "shrinking costs a pause, as any change"


POLICIES = ("punctual", "lyra", "edf", "tiresias")


@given(
    policies=some.lists(some.sampled_from(POLICIES), min_size=1, max_size=5),
    servers=some.lists(some.integers(1, 4), min_size=1, max_size=4),
    lent=some.lists(some.integers(0, 3), max_size=4),
)
def test_each_combination_runs_once_and_without_loans_once_per_size(
    policies: list[str], servers: list[int], lent: list[int]
) -> None:
    request = StudyRequest("trace", tuple(policies), inference_servers=tuple(lent))
    runs = runs_asked(request, servers)
    assert len(set(runs)) == len(runs)
    for policy in set(policies):
        mine = {(run.servers, run.inference_servers) for run in runs if run.policy == policy}
        numbers = set(lent) or {0} if policy in ("punctual", "lyra") else {0}
        assert mine == {(own, count) for own in set(servers) for count in numbers}
