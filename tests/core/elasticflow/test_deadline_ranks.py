"""The order of jobs by deadline: ties go by submission, then by id."""

from __future__ import annotations

from math import inf
from random import Random

import pytest

from scheduling.core.problem.problem import build_problem
from scheduling.core.question.snapshot import JobSnapshot
from tests.core.building import job, snapshot


def _few_deadlines(seed: int, jobs: int) -> list[JobSnapshot]:
    rng = Random(seed)
    return [
        job(
            f"job-{number:04d}",
            10.0,
            rng.choice([60.0, 120.0, rng.uniform(50.0, 500.0), inf]),
            {1: 1.0},
            submitted_at=-float(rng.randrange(5)),
        )
        for number in rng.sample(range(jobs), jobs)
    ]


@pytest.mark.parametrize(("seed", "jobs"), [(1, 0), (1, 1), (2, 2), (3, 40), (4, 700)])
def test_jobs_of_one_deadline_are_ranked_by_submission(seed: int, jobs: int) -> None:
    crowd = _few_deadlines(seed, jobs)
    problem = build_problem(snapshot((2, 2), *crowd))
    ranked = sorted(range(jobs), key=lambda row: problem.by_deadline[row])
    expected = sorted(crowd, key=lambda item: (item.deadline_at, item.submitted_at, item.id))
    assert [problem.columns.ids[row] for row in ranked] == [item.id for item in expected]
