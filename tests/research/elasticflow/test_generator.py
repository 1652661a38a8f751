"""The published generator: the same jobs every time, their distributions, and Figure 10 to the second."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from research.elasticflow.figures import fig10, fig11
from research.elasticflow.specs import workload_of
from research.elasticflow.tables import FIGURE_10, MAKESPAN, ON_TIME
from scheduling.core.question.snapshot import ServiceClass
from tests.simulation.workloads.helpers import assert_same, public_data


@pytest.fixture(autouse=True)
def with_public_data():
    if not (public_data() / "elasticflow" / "throughput.csv").is_file():
        pytest.skip("the throughput table is not here")


@pytest.mark.parametrize("policy", ["edf_artifact", "tiresias"])
def test_figure_10_matches_the_published_makespan_and_deadlines(policy):
    """Its jobs are all drawn from a seed, and these two policies are deterministic."""
    series = {"edf_artifact": "EDF", "tiresias": "Tiresias"}[policy]
    result = replace(fig10.BASE, policy=policy).run()
    assert fig10.makespan_hours(result) == pytest.approx(FIGURE_10[MAKESPAN][series], abs=0.05)
    assert result.ratio == pytest.approx(FIGURE_10[ON_TIME][series])


def test_another_draw_of_deadlines_leaves_all_else_as_it_is():
    spec = fig11.base(30)
    first, again, other = workload_of(spec), workload_of(spec), workload_of(replace(spec, deadline_draw=1))
    assert_same(first, again)
    for column in ("submitted_at", "iterations", "requested_gpus", "requested_seconds"):
        assert getattr(first, column).tolist() == getattr(other, column).tolist()
    assert first.deadline_at.tolist() != other.deadline_at.tolist()
    assert first.service_class != other.service_class


def test_more_best_effort_turns_jobs_into_it_and_none_back():
    few, many = (workload_of(fig11.base(share)).service_class for share in (30, 70))
    best_effort = [
        {row for row, service_class in enumerate(classes) if service_class is ServiceClass.BEST_EFFORT}
        for classes in (few, many)
    ]
    assert best_effort[0] < best_effort[1]
    assert len(best_effort[0]) / 200 == pytest.approx(0.3, abs=0.1)


def test_its_distributions_are_those_of_the_paper():
    jobs = workload_of(replace(fig10.BASE, trace="elasticflow_generator:jobs=4000", seed=5))
    gpus, counts = np.unique(jobs.requested_gpus, return_counts=True)
    shares = dict(zip(gpus.tolist(), (counts / jobs.jobs).tolist(), strict=True))
    assert shares == pytest.approx({1: 0.83, 2: 0.03, 4: 0.03, 8: 0.10, 16: 0.01}, abs=0.02)
    assert float(np.diff(jobs.submitted_at).mean()) == pytest.approx(1500, rel=0.05)
    assert float((jobs.requested_seconds < 60 * 10**2.5).mean()) == pytest.approx(0.8, abs=0.02)
    tightness = (jobs.deadline_at - jobs.submitted_at) / jobs.requested_seconds
    assert 0.49 < tightness.min() < 0.51 < 1.49 < tightness.max() < 1.51
