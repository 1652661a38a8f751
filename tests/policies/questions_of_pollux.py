"""Questions to Pollux's genetic search, small by hand or random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from simulation.baselines.against_lyra.genetic_operators import Question, WorkerCounts


def question(
    capacity: Sequence[int],
    ranges: Sequence[tuple[int, int]],
    *,
    width: Sequence[int] | None = None,
    present: Sequence[Sequence[int]] | None = None,
    discount: Sequence[float] | None = None,
    numbers: Sequence[Sequence[int]] | None = None,
) -> Question:
    """Jobs by (least, most) workers, that scale linearly and whose fair share is one worker; ``present`` by
    server.

    ``numbers``: the workers that each job may have, where these are not all from the least to the most.
    """
    jobs = len(ranges)
    greatest = max((most for _, most in ranges), default=0)
    listed = np.zeros((jobs, greatest + 1), dtype=np.int64)
    for job, (least, most) in enumerate(ranges):
        allowed = range(least, most + 1) if numbers is None else numbers[job]
        listed[job, list(allowed)] = list(allowed)
    listed = np.maximum.accumulate(listed, axis=1)
    return Question(
        capacity=np.array(capacity),
        width=np.array([1] * jobs if width is None else width),
        least=np.array([least for least, _ in ranges]),
        most=np.array([most for _, most in ranges]),
        listed=listed,
        speedup=listed.astype(np.float64),
        present=np.array(np.zeros((len(capacity), jobs)) if present is None else present, dtype=np.int16),
        discount=np.ones(jobs) if discount is None else np.array(discount),
    )


def is_allowed(asked: Question, placement: WorkerCounts) -> bool:
    """The rules, written plainly: GPUs of servers, allowed numbers, at most one job on a server that is on
    others too."""
    totals = placement.sum(axis=0)
    return bool(
        (placement >= 0).all()
        and (placement @ asked.width <= asked.capacity).all()
        and all(asked.listed[job, min(total, asked.most[job])] == total for job, total in enumerate(totals))
        and (((placement > 0) & ((placement > 0).sum(axis=0) > 1)).sum(axis=1) <= 1).all()
    )


@st.composite
def questions(draw: st.DrawFn) -> Question:
    """Draw a few jobs and servers of all kinds; the present placement may be invalid."""
    capacity = draw(st.lists(st.integers(1, 8), min_size=1, max_size=4))
    jobs = draw(st.integers(1, 6))
    numbers = [sorted(draw(st.sets(st.integers(1, 12), min_size=1, max_size=4))) for _ in range(jobs)]

    def for_each_job(of: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(of, min_size=jobs, max_size=jobs))

    return question(
        capacity,
        [(allowed[0], allowed[-1]) for allowed in numbers],
        width=for_each_job(st.sampled_from([1, 1, 2, 4, 8])),
        present=[for_each_job(st.integers(0, 4)) for _ in capacity],
        discount=for_each_job(st.floats(0.0, 1.0)),
        numbers=numbers,
    )
