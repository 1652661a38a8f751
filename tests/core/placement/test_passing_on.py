"""GPUs that pass from one job to another are listed by both for a while but counted once."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from random import Random

import numpy as np
import pytest

from scheduling.core.placement.occupancy import addresses_of
from scheduling.core.placement.repacking import Seating
from scheduling.core.problem.problem import build_problem
from scheduling.core.question.snapshot import BlockedGpus, JobSnapshot, ServiceClass, Snapshot, StoredPlan
from simulation.policies import policy_named
from tests.core.building import job, snapshot
from tests.core.garbage import check_decision


def holding(name: str, *gpus: int, locked: bool = True) -> JobSnapshot:
    """Return a best-effort job on these GPUs."""
    listed = job(name, 500.0, newcomer=False, gpus_now=len(gpus), placement=gpus, locked=locked)
    return replace(listed, service_class=ServiceClass.BEST_EFFORT, deadline_at=inf)


def test_gpus_that_pass_from_one_locked_job_to_another_are_taken_once() -> None:
    problem = build_problem(snapshot((4, 4), holding("leaves", 4, 5, 6, 7), holding("comes", 4, 5, 6, 7)))
    assert problem.open_timeline().free[0, 0] == 4


def test_promise_stands_while_other_gpus_pass_between_jobs() -> None:
    plan = StoredPlan(np.array([0.0]), np.array([20.0]), np.array([4]), 20.0)
    promised = job(
        "promised", 80.0, 20.5, {4: 4.0}, newcomer=False, promised=True, gpus_now=4, placement=(0, 1, 2, 3),
        stored_plan=plan,
    )  # fmt: skip
    question = snapshot((4, 4), promised, holding("leaves", 4, 5, 6, 7), holding("comes", 4, 5, 6, 7))
    decision = policy_named("punctual").replan(question)
    assert not decision.at_risk
    assert decision.placements["promised"] == (0, 1, 2, 3)


@pytest.mark.parametrize("gpus", [(4, 5), (2, 3, 4, 5), (0, 1, 2, 3, 4, 5, 6, 7), (1, 2, 3)])
def test_seated_job_owns_the_gpus_of_its_place(gpus: tuple[int, ...]) -> None:
    """Otherwise the place would be assigned twice, and two lists of whole servers would overlap."""
    problem = build_problem(snapshot((4, 4, 4), holding("first", *range(8)), holding("second", *gpus)))
    occupancy = Seating(problem.present_placement).fresh_with_locked(None)
    for row in range(2):
        for address in addresses_of(problem.blocks, occupancy, row):
            assert occupancy.owner[address] == row
    owned = np.bincount(np.arange(12) // 4, weights=occupancy.owner != -1, minlength=3)
    assert owned.tolist() == occupancy.taken.tolist()


def random_overlap(chance: Random) -> Snapshot:
    """Return running jobs on places that may overlap, and some blocked GPUs. Of two jobs on one GPU, at least
    one is locked."""
    size, servers = chance.choice((2, 4, 8)), chance.choice((2, 3, 4))

    def place(gpus: int) -> tuple[int, ...]:
        if gpus <= size:
            first = chance.randrange(servers) * size + chance.randrange(size // gpus) * gpus
            return tuple(range(first, first + gpus))
        chosen = sorted(chance.sample(range(servers), gpus // size))
        return tuple(address for server in chosen for address in range(server * size, (server + 1) * size))

    jobs = []
    free_to_move: set[int] = set()
    for number in range(chance.randint(3, 7)):
        gpus = place(chance.choice([level for level in (1, 2, 4, 8, 16) if level <= size * servers]))
        locked = chance.random() < 0.5 or not free_to_move.isdisjoint(gpus)
        free_to_move.update(() if locked else gpus)
        promised = chance.random() < 0.6
        length = 10.0 * chance.randint(1, 15)
        listed = job(
            f"job-{number}", chance.uniform(20, 800), chance.uniform(100, 2000) if promised else inf,
            {level: level**0.9 for level in (1, 2, 4, 8, 16)}, newcomer=False, promised=promised,
            gpus_now=len(gpus), placement=gpus, locked=locked,
            stored_plan=StoredPlan(np.array([0.0]), np.array([length]), np.array([len(gpus)]), length),
        )  # fmt: skip
        service = ServiceClass.SLO if promised else ServiceClass.BEST_EFFORT
        pauses = np.linspace(2.0, 4.0, listed.curve.levels.size)
        jobs.append(replace(listed, service_class=service, curve=replace(listed.curve, pause_seconds=pauses)))
    blocked = tuple(BlockedGpus(place(chance.choice((1, 2))), chance.uniform(5, 90)) for _ in range(2))
    question = snapshot((size,) * servers, *jobs, blocked=blocked)
    return replace(question, settings=replace(question.settings, slot_seconds=10.0))


def test_plan_is_found_for_any_jobs_sharing_gpus() -> None:
    chance = Random(5)
    policy = policy_named("punctual")
    for _ in range(300):
        question = random_overlap(chance)
        check_decision(question, policy.replan(question))
