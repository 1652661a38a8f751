"""Which jobs make way for the measurement of new functions, and how often."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.placement.making_way import ONCE_IN_SECONDS, making_way
from scheduling.core.placement.measuring import BEST_EFFORT, FREE, GROWN, measuring_blocks
from scheduling.core.question.snapshot import JobSnapshot, ServiceClass
from tests.core.building import job

JOBS = [job(name, 100) for name in "abc"]

#: Functions to measure one after the other: seconds since the one before, and the jobs in its way.
FUNCTIONS = st.lists(
    st.tuples(st.floats(0.0, 90.0), st.sets(st.sampled_from("abc"), min_size=1)), max_size=30
)


@given(FUNCTIONS)
def test_a_job_makes_way_once_a_minute_and_then_again(functions: list[tuple[float, set[str]]]) -> None:
    now = 1000.0
    suspended_at: dict[str, list[float]] = {running.id: [] for running in JOBS}
    for seconds, needed in functions:
        now += seconds
        last = {name: at[-1] for name, at in suspended_at.items() if at}
        may = making_way(JOBS, last, now)
        assert may == {name for name in suspended_at if last.get(name, -inf) + ONCE_IN_SECONDS <= now}
        for name in needed if needed <= may else ():
            suspended_at[name].append(now)
    for times in suspended_at.values():
        assert all(later - earlier >= 59.999 for earlier, later in zip(times, times[1:], strict=False))


@given(st.sampled_from(ServiceClass))
def test_no_job_makes_way_in_a_change_of_its_gpus(service_class: ServiceClass) -> None:
    assert not making_way([replace(JOBS[0], service_class=service_class, locked=True)], {}, 0.0)


def grown(deadline_at: float = 1e9, **facts: Any) -> JobSnapshot:
    """A running promised job on four GPUs of the levels 1, 2 and 4 with 1,000 iterations left."""
    facts = {"promised": True, "gpus_now": 4, "newcomer": False} | facts
    return job("grown", 1000, deadline_at, {1: 10.0, 2: 20.0, 4: 30.0}, pause=5.0, **facts)


def test_promised_job_makes_way_where_one_level_less_suffices() -> None:
    needed = 1000 / 20 + 5 + 3 + 7
    facts = {"finishing_seconds": 3.0, "failure_slack_seconds": 7.0}
    assert making_way([grown(100 + needed, **facts)], {}, 100.0)
    assert not making_way([grown(100 + needed - 0.1, **facts)], {}, 100.0)
    assert not making_way([grown(gpus_now=1)], {}, 100.0)


def test_jobs_with_lost_promises_make_no_way() -> None:
    assert not making_way([grown(at_risk=True)], {}, 0.0)
    assert not making_way([grown(promised=False)], {}, 0.0)


def test_soft_job_makes_way_above_its_lowest_level() -> None:
    soft = grown(0.0, promised=False, service_class=ServiceClass.SOFT)
    assert making_way([soft], {}, 100.0)
    assert not making_way([replace(soft, gpus_now=1)], {}, 100.0)


def test_best_effort_jobs_make_way_before_grown_ones() -> None:
    standing = np.array([GROWN] * 4 + [BEST_EFFORT] * 4 + [GROWN, FREE, FREE, FREE], dtype=np.int8)
    assert list(measuring_blocks((4, 4, 4), standing, [1, 2, 4])) == [(4, 5, 6, 7), (10, 11), (9,)]
