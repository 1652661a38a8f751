"""Progressive filling of one job does not depend on how free capacity is cut into pieces."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.elasticflow.minimum_satisfactory_share import Terms, fill
from scheduling.core.elasticflow.pause_budget import published_pause_seconds
from scheduling.core.plans.timeline import Timeline
from scheduling.core.problem.problem import build_problem
from scheduling.core.question.arrays import new_draft
from scheduling.core.question.curves import curve_from_measurements
from scheduling.core.question.snapshot import (
    JobSnapshot,
    PlannerSettings,
    ServerSnapshot,
    ServiceClass,
    Snapshot,
)


def timeline_of(times: list[float], free: list[int]) -> Timeline:
    return Timeline(np.array(times), np.array([free, free], dtype=np.int64), len(times))


@given(
    free=st.lists(st.integers(0, 4), min_size=1, max_size=12),
    cuts=st.lists(st.integers(1, 400), max_size=24),
    levels=st.integers(1, 3), work=st.floats(1.0, 200.0), due=st.integers(10, 420), pauses=st.booleans(),
    suffix=st.booleans(),
)  # fmt: skip
def test_a_plan_does_not_depend_on_where_equal_pieces_are_cut(
    free: list[int], cuts: list[int], levels: int, work: float, due: int, pauses: bool, suffix: bool
) -> None:
    """Filling skips pieces without effect and must stop in the right one."""
    rates = {2**level: 1.7**level for level in range(levels)}
    curve = curve_from_measurements(rates, pause_seconds=published_pause_seconds if pauses else None)
    job = JobSnapshot(
        id="job", service_class=ServiceClass.SLO, submitted_at=0.0, deadline_at=float(due),
        remaining_iterations=work, curve=curve, newcomer=True,
    )  # fmt: skip
    chosen = PlannerSettings(slot_seconds=5.0)
    problem = build_problem(
        Snapshot(now=0.0, next_slot_at=0.0, servers=(ServerSnapshot("one", 4),), jobs=(job,), settings=chosen)
    )
    times = [35.0 * piece for piece in range(len(free))]
    finer = sorted({*times, *map(float, cuts)})
    same = [free[int(np.searchsorted(times, at, "right")) - 1] for at in finer]
    plans = []
    for timeline in (timeline_of(times, free), timeline_of(finer, same)):
        draft = new_draft(timeline.pieces + 8)
        pieces, finish, gpu_time = fill(
            problem.jobs, 0, float(due), timeline, problem.slots, Terms(True, suffix), draft
        )
        plans.append((draft.time[:pieces].tolist(), draft.gpus[:pieces].tolist(), finish, gpu_time))
    (coarse_times, coarse_gpus, *coarse), (fine_times, fine_gpus, *fine) = plans
    assert coarse_gpus == fine_gpus
    assert np.allclose(coarse_times, fine_times)
    assert np.allclose(coarse, fine)
