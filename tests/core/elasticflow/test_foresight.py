"""Forecasts of forced moves: which moves are forced, and whether compiled kernels keep every store."""

from __future__ import annotations

import ast
from math import inf
from pathlib import Path

import numpy as np

import scheduling.core
import scheduling.policies
import simulation.baselines
from scheduling.core.placement.foresight import Script, Stage
from scheduling.core.placement.repacking import Seating
from scheduling.core.placement.resumed_foresight import ForesightFromNow
from scheduling.core.plans.charging import NO_CHARGES, slack_of
from scheduling.core.problem.problem import Problem, build_problem
from scheduling.core.question.arrays import Draft, Plans, no_plans, set_plan
from scheduling.core.question.snapshot import PlannerSettings
from tests.core.building import job, snapshot


def stage_of(problem: Problem) -> Stage:
    return Stage(problem.blocks, problem.jobs, problem.by_submission, problem.blocked, problem.blocked_until)


def test_a_restart_after_a_planned_wait_is_no_forced_move() -> None:
    """The pause of the start is part of the plan already."""
    running = job(
        "waits", 100.0, 1000.0, {1: 1.0}, pause=3.0, newcomer=False, promised=True, gpus_now=1, placement=(0,)
    )
    problem = build_problem(snapshot(4, running))
    plans = no_plans(1)
    times, gpus = np.array([0.0, 10.0, 30.0, 200.0]), np.array([1, 0, 1, 0])
    plans = Plans(*set_plan(plans, 0, Draft(times, gpus), 4, 130.0, 110.0))
    foresight = ForesightFromNow(Seating(problem.present_placement), stage_of(problem), 0.0)
    rows = np.array([0])
    for _ in range(6):  # the first forecast is computed in full, later forecasts resume from it
        feasible, moves = foresight.moves(Script(plans, problem.due, rows), rows)
        assert feasible
        assert moves.job.tolist() == []


def test_a_locked_job_may_be_moved_after_the_slot() -> None:
    """Sizes do not change within the slot, so the first change comes later."""
    settings = PlannerSettings(slot_seconds=10.0)
    jobs = [
        job(
            name, 100.0, 1000.0, {1: 1.0}, pause=3.0, newcomer=False, promised=True, gpus_now=1,
            placement=(address,), locked=name == "locked",
        )
        for name, address in (("locked", 0), ("other", 2))
    ]  # fmt: skip
    problem = build_problem(snapshot((2, 2), *jobs, job("pair", 10.0, 100.0, {2: 1.0}), settings=settings))
    plans = no_plans(3)
    for row, (starts, gpus) in enumerate(
        (((0.0, 900.0), (1, 0)), ((0.0, 900.0), (1, 0)), ((20.0, 90.0), (2, 0)))
    ):
        plans = Plans(*set_plan(plans, row, Draft(np.array(starts), np.array(gpus)), 2, inf, 0.0))
    foresight = ForesightFromNow(Seating(problem.present_placement), stage_of(problem), 0.0)
    rows = np.arange(3)
    for _ in range(6):
        feasible, moves = foresight.moves(Script(plans, problem.due, rows), rows)
        assert feasible
        assert moves.job.tolist() == [0]


def test_job_without_deadline_has_infinite_slack_for_moves() -> None:
    """This holds even where the plan never completes the work."""
    waiting = job("waits", 100.0, inf, {1: 1.0})
    problem = build_problem(snapshot(4, waiting))
    slack = slack_of(problem.jobs, problem.stored, np.array([0]), problem.due, NO_CHARGES)
    assert slack.tolist() == [inf]


def stores_left_out(function: ast.FunctionDef) -> list[str]:
    """Return the stores of a kernel with a comprehension that go through an attribute of a local variable.

    In such functions Numba removes stores that it considers unused, and it ignores uses of the attribute.
    """
    if not any("kernel" in ast.unparse(decorator) for decorator in function.decorator_list):
        return []
    if not any(isinstance(node, ast.ListComp | ast.GeneratorExp | ast.Lambda) for node in ast.walk(function)):
        return []
    arguments = {argument.arg for argument in function.args.args}
    stores = []
    for node in ast.walk(function):
        if not (isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)):
            continue
        holder: ast.expr = node.value
        while isinstance(holder, ast.Subscript):
            holder = holder.value
        if isinstance(holder, ast.Attribute) and ast.unparse(holder.value) not in arguments:
            stores.append(f"{function.name}: {ast.unparse(node)}")
    return stores


def test_no_kernel_has_a_store_that_numba_leaves_out() -> None:
    stores = []
    for package in (scheduling.core, scheduling.policies, simulation.baselines):
        for source in Path(next(iter(package.__path__))).rglob("*.py"):
            for node in ast.walk(ast.parse(source.read_text())):
                if isinstance(node, ast.FunctionDef):
                    stores += stores_left_out(node)
    assert stores == []
