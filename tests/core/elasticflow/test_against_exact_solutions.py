"""Compare admission with exact solutions of small instances: it never makes an infeasible promise."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from random import Random

import pytest

from scheduling.core.decide import replan
from scheduling.core.elasticflow.search_limits import SearchLimits
from scheduling.core.question.curves import curve_from_measurements
from scheduling.core.question.snapshot import Fill, JobSnapshot, PlannerSettings
from tests.core.building import C3, C4, job
from tests.core.exact import (
    ExactJob,
    Feasibility,
    feasible_by_trying_everything,
    finish_of,
    job_from,
    linear_jobs_feasible,
    solve,
)
from tests.core.small_instances import (
    LOADS,
    SLOT_SECONDS,
    admitted,
    one_slot_later,
    random_job,
    random_snapshot,
)

SEARCHES = {
    "published": None,
    "as shipped": SearchLimits(),
    "searching for everybody": SearchLimits(everybody=True, most_fillings=24),
}


def answer(*jobs: JobSnapshot, gpus: int, now: float = 0.0) -> Feasibility:
    return solve([job_from(item, now) for item in jobs], gpus, SLOT_SECONDS).feasibility


def random_exact_job(rng: Random, gpus: int, slots: float) -> ExactJob:
    rate, levels, throughput, level = rng.uniform(0.5, 2.0), [], [], 1
    while level <= gpus:
        levels.append(level)
        throughput.append(rate)
        rate *= rng.uniform(1.1, 1.9)
        level *= 2
    pause = rng.choice([0.0, 0.0, 0.3, 1.5])
    due = rng.uniform(1.0, slots)
    return ExactJob(
        tuple(levels),
        tuple(throughput),
        pause=tuple(pause * rng.uniform(0.1, 1.0) for _ in levels),
        work=rng.choice(throughput) * due * rng.uniform(0.2, 0.8),
        due=due,
        finishing=rng.choice([0.0, 0.0, 0.7]),
        held=rng.choice([0, 0, 1]),
        pause_left=0.0,
    )


# The exact answer itself ---------------------------------------------------------------------------


def test_the_solver_agrees_with_trying_everything():
    feasible = 0
    for seed in range(12):
        rng = Random(seed)
        gpus = rng.choice([2, 4])
        jobs = [random_exact_job(rng, gpus, 3.6) for _ in range(rng.randint(2, 3))]
        solution = solve(jobs, gpus, 1.0)
        expected = feasible_by_trying_everything(jobs, gpus, 1.0)
        assert solution.feasibility is (Feasibility.FEASIBLE if expected else Feasibility.INFEASIBLE), seed
        feasible += expected
        for exact_job, sizes in zip(jobs, solution.sizes, strict=False):
            assert finish_of(exact_job, sizes.tolist(), 1.0) <= exact_job.due + 1e-4
    assert 3 < feasible < 10


def test_the_specification_s_examples_are_feasible_or_not_as_stated():
    a = job("A", 4, 4, C3)
    cases = [
        ("V1", 2, [job("A", 3, 3, C3), job("B", 3, 3.5, C3)], True),
        ("V3", 4, [job("A", 1, 0.5)], True),
        ("V3 too tight", 4, [job("A", 1, 0.49)], False),
        ("V4", 4, [job("C", 3, 2)], True),
        ("V5", 4, [job("A", 1, 1), job("B", 1.5, 1), job("C", 3, 2)], True),
        ("V10 at 1", 4, [job("A", 2, 3), job("B", 3, 3)], True),
        ("V10 at 1, with C", 4, [job("A", 2, 3), job("B", 3, 3), job("C", 6, 3)], False),
        ("V11 B", 2, [a, job("B", 5, 4, C3)], False),
        ("V11 C", 2, [a, job("C", 4, 4, C3)], True),
        ("V11 E", 2, [a, job("E", 3, 2, C3)], False),
        ("V13, which uniform filling declines", 2, [job("X", 2.5, 2, C3), job("Y", 1, 2, C3)], True),
        ("V16 first two", 2, [job("U", 3, 3, C3), job("V", 4, 3, C3)], False),
        ("V16 first and third", 2, [job("U", 3, 3, C3), job("Y", 3, 3, C3)], True),
        ("V18", 2, [job("A", 2.5, 2.5, C3)], True),
        ("V18 beside one more", 2, [job("A", 2.5, 2.5, C3), job("B", 2.6, 2.6, C3)], True),
        ("V18, its GPU kept to the slot's end", 1, [job("A", 2.5, 2.5, {1: 1.0}), job("B", 0.5, 3, {1: 1.0})],
        False),
    ]  # fmt: skip
    for name, gpus, jobs, feasible in cases:
        expected = Feasibility.FEASIBLE if feasible else Feasibility.INFEASIBLE
        assert answer(*jobs, gpus=gpus) is expected, name


def test_a_pause_can_make_what_fits_infeasible():
    assert answer(job("A", 4, 2, C4), gpus=4) is Feasibility.FEASIBLE
    assert answer(job("A", 4, 2, C4, pause=0.1), gpus=4) is Feasibility.INFEASIBLE
    held = job("A", 4, 2, C4, pause=0.1, gpus_now=4, placement=(0, 1, 2, 3))
    assert answer(held, gpus=4) is Feasibility.FEASIBLE


# Admission -----------------------------------------------------------------------------------------


def assert_only_feasible_sets_are_admitted(seed: int) -> None:
    load = list(LOADS.values())[seed % 4]
    pause = (0.0, 0.0, 0.15, 0.6)[seed // 4 % 4]
    snapshot = random_snapshot(seed, load, pause=pause, most_jobs=5 if pause else 8)
    by_id = {item.id: item for item in snapshot.jobs}
    gpus = snapshot.servers[0].gpus
    sets = {
        admitted(replace(snapshot, settings=PlannerSettings(slot_seconds=SLOT_SECONDS, fill=fill)), search)
        for fill in Fill
        for search in SEARCHES.values()
    }
    # A subset of a feasible set is feasible: checking the largest sets is enough.
    for names in (item for item in sets if not any(set(item) < set(other) for other in sets)):
        assert answer(*(by_id[name] for name in names), gpus=gpus) is Feasibility.FEASIBLE, names


def assert_only_feasible_sets_are_admitted_as_time_passes(seed: int) -> None:
    """Assert that the admitted set is feasible at each instant, given all earlier decisions."""
    rng = Random(seed)
    settings = PlannerSettings(slot_seconds=SLOT_SECONDS, fill=rng.choice(list(Fill)))
    pause = rng.choice([0.0, 0.15])
    snapshot = random_snapshot(seed, LOADS["loaded"], pause=pause, most_jobs=4, settings=settings)
    gpus = snapshot.servers[0].gpus
    for instant in range(4):
        decision = replan(snapshot)
        refused = {verdict.job_id for verdict in decision.verdicts if not verdict.promised}
        promised = [item for item in snapshot.jobs if item.id not in refused]
        assert answer(*promised, gpus=gpus, now=snapshot.now) is Feasibility.FEASIBLE, instant
        snapshot = one_slot_later(snapshot, decision)
        late = random_job(rng, f"later{instant}", gpus, LOADS["loaded"].looseness, pause, snapshot.now)
        snapshot = replace(snapshot, jobs=(*snapshot.jobs, late))


#: Number of instances decided at once (each load with each pause), and of instances followed over time.
#: `make test-all` takes thousands.
TOGETHER = 16
OVER_TIME = 4


def test_jobs_admitted_together_are_feasible():
    for seed in range(TOGETHER):
        assert_only_feasible_sets_are_admitted(seed)


def test_jobs_admitted_over_time_are_feasible():
    for seed in range(OVER_TIME):
        assert_only_feasible_sets_are_admitted_as_time_passes(seed)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_admitted_jobs_are_feasible_in_thousands_of_cases():
    for seed in (*range(TOGETHER, 240), *range(1000, 4000)):
        assert_only_feasible_sets_are_admitted(seed)
    for seed in (*range(OVER_TIME, 40), *range(1000, 1600)):
        assert_only_feasible_sets_are_admitted_as_time_passes(seed)


def test_search_admits_all_newcomers_before_the_published_refusal():
    """Both decide alike up to the first refusal of the published rule; only the search may admit that job."""
    for seed in range(80):
        snapshot = random_snapshot(seed, LOADS["loaded"], pause=0.0)
        published = admitted(snapshot, None)
        searching = admitted(snapshot, SEARCHES["searching for everybody"])
        names = [newcomer.id for newcomer in snapshot.jobs]
        refused = next((place for place, name in enumerate(names) if name not in published), len(names))
        assert set(names[:refused]) <= set(searching)


# Theorem 1 -----------------------------------------------------------------------------------------


def linear_jobs(seed: int) -> tuple[int, list[JobSnapshot], list[tuple[float, float, float]]]:
    rng = Random(seed)
    gpus = rng.choice([2, 4])
    jobs, facts = [], []
    for number in range(rng.randint(1, 4)):
        rate = rng.uniform(0.5, 2.0)
        curve = curve_from_measurements({level: rate * level for level in (1, 2, 4) if level <= gpus})
        work, deadline = rng.uniform(0.5, 6.0) * rate, rng.uniform(1.0, 4.0)
        jobs.append(replace(job(f"job{number}", work, deadline), curve=curve))
        facts.append((work, rate, deadline))
    return gpus, jobs, facts


def test_theorem_1_is_necessary_for_linear_jobs():
    """Jobs that violate the condition on prefixes are infeasible. It is not sufficient: GPUs and slots are
    whole."""
    broken = met_but_infeasible = 0
    for seed in range(200):
        gpus, jobs, facts = linear_jobs(seed)
        exact = answer(*jobs, gpus=gpus)
        if not linear_jobs_feasible(facts, gpus):
            broken += 1
            assert exact is Feasibility.INFEASIBLE, seed
        elif exact is Feasibility.INFEASIBLE:
            met_but_infeasible += 1
    assert broken > 20
    assert met_but_infeasible > 0


def test_theorem_1_is_sufficient_where_slots_are_fine():
    """With deadlines on slot boundaries and short slots, the condition decides nearly every case."""
    agree = 0
    for seed in range(40):
        rng = Random(seed)
        gpus = 2
        facts = [(rng.uniform(2.0, 9.0), 1.0, float(rng.randint(3, 9))) for _ in range(3)]
        jobs = [job(f"job{n}", work, due, {1: 1.0, 2: 2.0}) for n, (work, _, due) in enumerate(facts)]
        exact = answer(*jobs, gpus=gpus)
        room = all(
            sum(work for work, _, due in subset) <= gpus * max(due for _, _, due in subset) - 2 * len(subset)
            for size in (1, 2, 3)
            for subset in combinations(facts, size)
        )
        if room:
            assert exact is Feasibility.FEASIBLE, seed
        agree += linear_jobs_feasible(facts, gpus) is (exact is Feasibility.FEASIBLE)
    assert agree >= 30
