"""How often jobs are suspended so that new functions can be measured."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.placement.making_way import ONCE_IN_SECONDS, making_way
from scheduling.core.question.snapshot import ServiceClass
from tests.core.building import job

JOBS = [job(name, 100) for name in "abc"]

#: Functions to measure one after the other: seconds since the one before, and the jobs in its way.
FUNCTIONS = st.lists(
    st.tuples(st.floats(0.0, 90.0), st.sets(st.sampled_from("abc"), min_size=1)), max_size=30
)


@given(FUNCTIONS)
def test_a_job_makes_way_once_a_minute_and_then_again(functions: list[tuple[float, set[str]]]) -> None:
    now = 1000.0
    suspended_at: dict[str, list[float]] = {one.id: [] for one in JOBS}
    for seconds, needed in functions:
        now += seconds
        last = {name: at[-1] for name, at in suspended_at.items() if at}
        may = making_way(JOBS, last, now)
        assert may == {name for name in suspended_at if last.get(name, -inf) + ONCE_IN_SECONDS <= now}
        for name in needed if needed <= may else ():
            suspended_at[name].append(now)
    for times in suspended_at.values():
        assert all(later - earlier >= 59.999 for earlier, later in zip(times, times[1:], strict=False))


@given(st.sampled_from(ServiceClass), st.booleans())
def test_no_job_with_a_deadline_makes_way(service_class: ServiceClass, locked: bool) -> None:
    asked = replace(JOBS[0], service_class=service_class, locked=locked)
    assert bool(making_way([asked], {}, 0.0)) == (service_class is ServiceClass.BEST_EFFORT and not locked)
