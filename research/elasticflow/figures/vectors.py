"""The worked examples V1 to V27: those that need no test harness are computed here; for the rest their tests
are named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

import numpy as np

from research.elasticflow.comparing import ELASTICFLOW
from research.elasticflow.specs import ElasticFlowSpec
from research.figure import Check, Context, FigureDefinition, FigureReport, Table
from research.rows import over
from scheduling.core.elasticflow.pause_budget import published_pause_seconds
from scheduling.core.question.snapshot import AdmissionRule, ServiceClass
from simulation.engine.asked.pauses import Pauses
from simulation.engine.asked.settings import PoolSize, SimulationSettings
from simulation.engine.run import Simulation
from simulation.reports.summary import summary
from simulation.workloads.catalogue import load_workload
from simulation.workloads.errors import TraceError
from simulation.workloads.workload import MeasuredThroughput, ModelProfile, Workload

ADMISSION = "tests/core/elasticflow/test_vectors_admission.py"
ALLOCATION = "tests/core/elasticflow/test_vectors_allocation.py"
PAUSES = "tests/core/elasticflow/test_vectors_pauses_and_reserve.py"
PLACEMENT = "tests/core/placement/test_vectors_placement.py"
TESTED_BY: dict[str, str] = {
    **{f"V{number}": ADMISSION for number in (1, 2, 3, 4, 5, 6, 9, 11, 13, 16, 17, 18, 27)},
    **{f"V{number}": ALLOCATION for number in (10, 12, 14, 15, 23)},
    **{f"V{number}": PAUSES for number in (7, 21, 22)},
    **{f"V{number}": PLACEMENT for number in (8, 19, 20)},
    "V24": "tests/policies/test_tiresias.py",
    "V25": "tests/simulation/workloads/test_importers.py",
    "V26": "tests/research/elasticflow/test_arithmetic.py",
}
KIND = "example"
C3 = {1: 1.0, 2: 1.5}
C4 = {1: 1.0, 2: 1.5, 4: 2.0}
RATIOS = {"EDF": 7.65, "Gandiva": 3.17, "Tiresias": 1.46, "Themis": 1.71, "Chronus": 1.62}


def runs(full: bool) -> Sequence[ElasticFlowSpec]:
    """Return no run: the examples take no time and are computed in the report."""
    return ()


def report(context: Context) -> FigureReport:
    """Report the computed examples, and the test of every one."""
    ordered = sorted(TESTED_BY, key=lambda name: int(name[1:]))
    return FigureReport(
        name=FIGURE.name,
        title=FIGURE.title,
        made="computed when the report is made, with unit slots and without pauses unless a vector is about "
             "them",
        tables=[
            Table(
                "Where each vector is tested",
                f"All {len(ordered)} vectors are tests; those with a check above are computed here as well.",
                ("Vector", "Test"),
                tuple((name, TESTED_BY[name]) for name in ordered),
            )
        ],
        checks=[
            _figure_3(), _life_cycle(), _granularity(), _refill(), _pauses(), *_table_and_trace(),
            _published_ratios(context),
        ],
    )  # fmt: skip


Example = tuple[float, float, float, Mapping[int, float]]
"""Submission time, iterations, deadline, curve."""


def simulated(
    policy: str, gpus: int, jobs: Sequence[Example], admission: AdmissionRule = AdmissionRule.PER_JOB
) -> str:
    """Simulate hand-made jobs with unit slots and no pauses; return "on time of submitted"."""
    settings = SimulationSettings(
        policy=policy, pools=(PoolSize(KIND, 1, gpus),), slot_seconds=1.0, pauses=Pauses.NONE,
        admission=admission
    )  # fmt: skip
    facts = summary(Simulation(_by_hand(jobs), settings).run())
    return f"{facts['deadlines_met']} of {facts['slo_jobs']}"


def _by_hand(jobs: Sequence[Example]) -> Workload:
    count = len(jobs)
    profiles = tuple(
        ModelProfile(
            f"example {row}", 64,
            {KIND: MeasuredThroughput(np.array(sorted(curve)),
            np.array([curve[gpus] for gpus in sorted(curve)]))},
        )
        for row, (_, _, _, curve) in enumerate(jobs)
    )  # fmt: skip
    return Workload(
        name="worked example",
        source="worked by hand from the paper",
        job_id=tuple(f"job-{row}" for row in range(count)),
        service_class=(ServiceClass.SLO,) * count,
        submitted_at=np.array([job[0] for job in jobs]),
        deadline_at=np.array([job[2] for job in jobs]),
        iterations=np.array([job[1] for job in jobs]),
        profile_of=np.arange(count),
        requested_gpus=np.ones(count, dtype=np.int64),
        requested_seconds=np.array([job[1] for job in jobs]),
        profiles=profiles,
    )


def _is(name: str, found: str, wanted: str) -> Check:
    return Check(name, found == wanted, f"{found}; should be {wanted}")


def _figure_3() -> Check:
    jobs = [(0.0, 3.0, 3.0, C3), (0.0, 3.0, 3.5, C3)]
    found = f"EDF {simulated('edf', 2, jobs)}, ElasticFlow {simulated('elasticflow', 2, jobs)}"
    return _is("V1, Figure 3 of the paper: EDF misses one of two deadlines, ElasticFlow none", found,
               "EDF 1 of 2, ElasticFlow 2 of 2")  # fmt: skip


def _life_cycle() -> Check:
    jobs = [(0.0, 4.0, 4.0, C4), (1.0, 3.0, 4.0, C4), (1.0, 6.0, 4.0, C4)]
    return _is("V10, a whole life cycle on four GPUs", simulated("elasticflow", 4, jobs), "2 of 3")


def _granularity() -> Check:
    jobs = [(0.0, 3.0, 3.0, C3), (0.0, 4.0, 3.0, C3), (0.0, 3.0, 3.0, C3)]
    found = (
        f"one by one {simulated('elasticflow', 2, jobs)}, as a batch "
        f"{simulated('elasticflow', 2, jobs, AdmissionRule.BATCH)}"
    )
    return _is("V16, admission of three jobs at once", found, "one by one 2 of 3, as a batch 0 of 3")


def _refill() -> Check:
    jobs = [
        (0.0, 0.5, 1.0, C4),
        (0.0, 3.5, 3.0, {1: 1.0, 2: 1.9, 4: 3.4}),
        (0.0, 3.5, 3.0, {1: 1.0, 2: 1.2, 4: 1.3}),
    ]
    return _is("V27, a refill alone would break a promise", simulated("elasticflow", 4, jobs), "3 of 3")


def _pauses() -> Check:
    found = [
        published_pause_seconds(1), published_pause_seconds(8), published_pause_seconds(64),
        published_pause_seconds(8, cached=True), published_pause_seconds(8, trainers_restart=True),
        published_pause_seconds(8, cluster_gpus=256),
        published_pause_seconds(8, cluster_gpus=256, trainers_restart=True),
    ]  # fmt: skip
    text = ", ".join(f"{seconds:g}" for seconds in found)
    return _is("V21, the pause model in seconds", text, "4, 10, 16, 2, 37, 15, 62")


def _table_and_trace() -> list[Check]:
    """Check V7 and V25, which need the public files."""
    linear = "V7, VGG16 with batch 256 on eight A100: share of linear"
    row = "V25, iterations and tightness of a row of cluster06"
    try:
        workload = load_workload("cluster06", allow_paths=False)
    except TraceError:
        return [
            Check(linear, None, "the public traces are not here"),
            Check(row, None, "the public traces are not here"),
        ]
    share = next(
        (
            _rate(profile, 8) / (8 * _rate(profile, 1))
            for profile in workload.profiles
            if (profile.model, profile.global_batch_size) == ("vgg16", 256)
        ),
        None,
    )
    at = np.flatnonzero((workload.iterations == 40_285) & (workload.submitted_at == 16_566))
    tightness = (
        float(((workload.deadline_at - workload.submitted_at) / workload.requested_seconds)[at[0]])
        if at.size
        else inf
    )
    return [
        Check(
            linear, None if share is None else abs(share - 0.7609) <= 0.001,
            "no such model" if share is None else f"{share:.2%}; the paper says 76.07 %, the shipped table "
                                                  f"76.09 %",
        ),
        _is(row, f"{tightness:.3f}" if at.size else "no such row", "1.229"),
    ]  # fmt: skip


def _rate(profile: ModelProfile, gpus: int) -> float:
    points = profile.by_kind["A100"]
    return float(points.iterations_per_second[points.gpus.tolist().index(gpus)])


def _published_ratios(context: Context) -> Check:
    get = context.published.get
    place = "128 GPUs, 195 jobs"
    found = {name: over(get("6b", ELASTICFLOW, place), get("6b", name, place)) for name in RATIOS}
    if None in found.values():
        return Check("V26, ratios of Figure 6(b)", None, "the published values are not here")
    text = ", ".join(f"{name} {value:.2f}" for name, value in found.items())
    return _is(
        "V26, ratios of Figure 6(b)", text, ", ".join(f"{name} {value:.2f}" for name, value in RATIOS.items())
    )


FIGURE = FigureDefinition("vectors", "Worked examples", False, runs, report)
