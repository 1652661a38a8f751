"""Growth in the next slot under the default policy: one knapsack for promised jobs and all others."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.decide import reallocate
from scheduling.core.problem.problem import build_problem
from scheduling.core.question.snapshot import (
    JobSnapshot,
    PlannerSettings,
    ScalingCurve,
    ServerSnapshot,
    ServiceClass,
    Snapshot,
)
from scheduling.core.together.growth import grow_by_knapsack

GPUS = 8


def curve(*rates: float) -> ScalingCurve:
    levels = 2 ** np.arange(len(rates))
    return ScalingCurve(levels, np.array(rates), np.zeros(len(rates)))


def job(
    name: str, rates: tuple[float, ...], iterations: float, deadline_at: float | None = None
) -> JobSnapshot:
    promised = deadline_at is not None
    return JobSnapshot(
        id=name,
        service_class=ServiceClass.SLO if promised else ServiceClass.BEST_EFFORT,
        submitted_at=0.0,
        deadline_at=float("inf") if deadline_at is None else deadline_at,
        remaining_iterations=iterations,
        curve=curve(*rates),
        newcomer=True,
    )


def sizes(*jobs: JobSnapshot, knapsack: bool = True) -> dict[str, int]:
    question = Snapshot(
        now=0.0,
        next_slot_at=0.0,
        servers=(ServerSnapshot("server", GPUS),),
        jobs=jobs,
        settings=PlannerSettings(slot_seconds=10.0),
    )
    problem = build_problem(question)
    answer = reallocate(problem, growth=grow_by_knapsack if knapsack else None)
    held = np.diff(answer.placements.offsets).tolist()
    return dict(zip(problem.columns.ids, held, strict=True))


def test_gpus_go_to_the_jobs_that_save_most_completion_time_together() -> None:
    """One job alone gains from eight GPUs as much as each of two from four; the two together save more."""
    linear = (1.0, 2.0, 4.0, 8.0)
    assert sizes(job("a", linear, 800.0), job("b", linear, 800.0)) == {"a": 4, "b": 4}


def test_a_longer_job_gets_more_as_it_saves_more_seconds() -> None:
    linear = (1.0, 2.0, 4.0, 8.0)
    grown = sizes(job("long", (1.0, 2.0, 4.0), 4000.0), job("short", linear, 40.0))
    assert grown["long"] == 4


def test_a_promised_job_with_time_to_spare_leaves_growth_to_others() -> None:
    """It is on time with one GPU and would waste most of four."""
    poor = (1.0, 1.1, 1.15, 1.2)
    grown = sizes(job("promised", poor, 100.0, deadline_at=1000.0), job("other", (1.0, 2.0, 4.0), 4000.0))
    assert grown == {"promised": grown["promised"], "other": 4}


def test_promises_are_kept_before_any_job_grows() -> None:
    """The promised job needs all eight GPUs until its deadline."""
    linear = (1.0, 2.0, 4.0, 8.0)
    grown = sizes(job("promised", linear, 8 * 95.0, deadline_at=100.0), job("other", linear, 1e6))
    assert grown == {"promised": 8, "other": 0}


@st.composite
def crowds(draw: st.DrawFn) -> list[JobSnapshot]:
    jobs = []
    for number in range(draw(st.integers(1, 6))):
        rates, rate = [], draw(st.floats(0.5, 3.0))
        for _ in range(draw(st.integers(1, 4))):
            rates.append(rate)
            rate *= draw(st.floats(1.05, 2.0))
        deadline = draw(st.one_of(st.none(), st.floats(50.0, 2000.0)))
        jobs.append(job(f"job{number}", tuple(rates), draw(st.floats(20.0, 2000.0)), deadline))
    return jobs


@given(crowds())
def test_growth_fits_the_cluster_and_idles_no_more_than_step_growth(
    jobs: list[JobSnapshot],
) -> None:
    by_knapsack, by_steps = sizes(*jobs), sizes(*jobs, knapsack=False)
    assert sum(by_knapsack.values()) <= GPUS
    for item in jobs:
        assert by_knapsack[item.id] in (0, *item.curve.levels.tolist())
    if sum(by_steps.values()) == GPUS and len(jobs) == 1:
        assert by_knapsack == by_steps
