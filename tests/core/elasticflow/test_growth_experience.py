"""The expected duration of a job's growth, and what one decision learns for the next."""

from __future__ import annotations

import numpy as np
import pytest

from scheduling.core.elasticflow.growth_experience import GROWN_AT, IDLE_SINCE, LASTED, next_notes
from scheduling.core.question.snapshot import JobSnapshot, PlannerSettings, Snapshot
from simulation.policies import policy_named
from tests.core.building import job, servers

PUNCTUAL = policy_named("punctual")
LINEAR = {1: 1.0, 2: 2.0, 4: 4.0, 8: 8.0}
PAUSE = 10.0
#: Seconds on eight instead of four GPUs that gain as many iterations as the pauses of a change each way cost.
ENOUGH = 30.0


def running(memory: tuple[float, ...], gpus: int = 4) -> JobSnapshot:
    """Return a long job with a far deadline on the first ``gpus`` of eight GPUs."""
    return job(
        "long", 1e5, 1e6, LINEAR, pause=PAUSE, newcomer=False, gpus_now=gpus, placement=tuple(range(gpus)),
        memory=memory,
    )  # fmt: skip


def question(at: float, *jobs: JobSnapshot) -> Snapshot:
    return Snapshot(at, at, servers(8), jobs, settings=PlannerSettings(slot_seconds=5.0))


@pytest.mark.parametrize("lasted", [1.0, ENOUGH - 0.1, ENOUGH + 0.1, 1e6])
def test_a_job_grows_if_growth_lasts_long_enough(lasted: float) -> None:
    decision = PUNCTUAL.replan(question(1000.0, running((900.0, 0.0, lasted))))
    assert len(decision.placements["long"]) == (8 if lasted > ENOUGH else 4)


def test_a_job_without_experience_grows() -> None:
    assert len(PUNCTUAL.replan(question(1000.0, running(()))).placements["long"]) == 8


def test_idle_gpus_are_used_once_they_were_idle_long_enough() -> None:
    first = PUNCTUAL.replan(question(1000.0, running((900.0, 0.0, 1.0))))
    assert len(first.placements["long"]) == 4
    assert 1000.0 + ENOUGH <= first.next_wake_at <= 1000.0 + ENOUGH + 5.0
    noted = first.job_memory["long"]
    then = PUNCTUAL.replan(question(first.next_wake_at, running(noted)))
    assert len(then.placements["long"]) == 8


def test_duration_of_growth_is_learnt_when_the_job_shrinks() -> None:
    problem = PUNCTUAL.problem_of(question(1000.0, running((960.0, 0.0, 20.0), gpus=8)))
    notes = next_notes(problem, np.array([2]))
    assert notes[0, LASTED] == (20.0 + 40.0) / 2
    assert notes[0, IDLE_SINCE] == 1000.0, "room for four"
    grown = next_notes(PUNCTUAL.problem_of(question(1100.0, running(tuple(notes[0]), gpus=2))), np.array([8]))
    assert grown[0, GROWN_AT] == 1000.0, "the job could have grown at that time"
    assert grown[0, IDLE_SINCE] == 0.0


def test_idle_gpus_taken_by_other_jobs_count_as_ended_growth() -> None:
    problem = PUNCTUAL.problem_of(question(1000.0, running((900.0, 990.0, 30.0))))
    assert next_notes(problem, np.array([4]))[0, LASTED] == 30.0, "the GPUs are still idle"
    both = question(1000.0, running((900.0, 990.0, 30.0)), job("other", 10.0, measured=LINEAR))
    notes = next_notes(PUNCTUAL.problem_of(both), np.array([4, 4]))
    assert notes[0, LASTED] == (30.0 + 10.0) / 2
    assert notes[0, IDLE_SINCE] == 0.0
