"""GPUs for tasks by their loads: light tasks share a GPU, heavy ones have several.

All ranks wait for the one with the largest load (the *cask effect*). The paper gives examples only; the
planner is ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil

import numpy as np
from numpy.typing import NDArray

from moe.moesys.checks import check_at_least, check_at_most, check_positive
from moe.moesys.choices import MAX_GPUS, Mode
from moe.moesys.tasks import ElasticPlan, RankMemory, RankShare, Task, split_samples

#: Relative error of quotients of loads.
ROUNDING = 1e-9
MAX_TASKS = 1024
#: With more tasks, not all sums of loads are tried as quotas.
MAX_TASKS_FOR_SUBSETS = 16
#: Quotas of one grid. Four rounds narrow the quota to less than a millionth of the first grid's step.
GRID = 256
GRID_ROUNDS = 4
#: Quotas that are counted in one pass, which limits the memory of the pass.
QUOTAS_PER_PASS = 2048


def plan_elastic(
    tasks: Sequence[Task],
    mode: Mode,
    budget: int | None = None,
    quota: float | None = None,
    memory: RankMemory | None = None,
) -> ElasticPlan:
    """Return ranks for tasks.

    Args:
        budget: largest number of GPUs, for `Mode.BUDGET`. GPUs that cannot lower the largest load stay free.
        quota: for `Mode.UP`, in place of the smallest load.
        memory: None for no limit.

    Raises:
        ValueError: no task has load, or memory or budget allow no plan. Then the message says how many GPUs
            allow one.
    """
    check_at_most("number of tasks", len(tasks), MAX_TASKS)
    loads = [task.load for task in tasks if task.load]
    if not loads:
        raise ValueError("tasks has no task with load; at least one must have a batch above 0")
    memory = memory or RankMemory()
    if mode is Mode.BUDGET:
        if budget is None:
            raise ValueError("budget is missing; mode budget needs it")
        check_at_least("budget", budget)
        return _plan_within_budget(tuple(tasks), min(budget, MAX_GPUS), memory)
    if mode is Mode.UP:
        if quota is not None:
            check_positive("quota", quota)
        return _plan_or_raise(tuple(tasks), quota or min(loads), memory, pack=False)
    return _plan_or_raise(tuple(tasks), max(loads), memory, pack=True)


def plan_with_quota(
    tasks: Sequence[Task], quota: float, memory: RankMemory | None = None, *, pack: bool = True
) -> ElasticPlan | None:
    """Split tasks above the quota, and pack the others first-fit decreasing. None if memory forbids it.

    Args:
        pack: False gives every task its own ranks.

    Raises:
        ValueError: the quota is not above 0, or needs more than 4,096 GPUs.
    """
    check_positive("quota", quota)
    memory = memory or RankMemory()
    parts = [_ranks_alone(task, quota) for task in tasks]
    if sum(parts) > MAX_GPUS:
        raise ValueError(f"quota is {quota:g}, which needs {sum(parts)} GPUs; the limit is {MAX_GPUS}")
    units: list[tuple[RankShare, ...]] = []
    for index, (task, ranks) in enumerate(zip(tasks, parts, strict=True)):
        if ranks > 1 or (ranks == 1 and not pack):
            split = split_samples(task.batch, ranks)
            if not memory.fits(1.0, max(split)):
                return None
            units.append(tuple(RankShare((index,), (samples,)) for samples in split))
    if pack:
        light = [index for index, ranks in enumerate(parts) if ranks == 1]
        bins = _pack_first_fit(tasks, light, quota, memory)
        if bins is None:
            return None
        units.extend((RankShare(tuple(held), tuple(tasks[index].batch for index in held)),) for held in bins)
    units.sort(key=lambda unit: unit[0].tasks[0])
    return ElasticPlan(tuple(tasks), quota, tuple(share for unit in units for share in unit))


def plan_one_gpu_each(tasks: Sequence[Task]) -> ElasticPlan:
    """Return the plan without elasticity: one GPU for each task with load."""
    shares = tuple(RankShare((index,), (task.batch,)) for index, task in enumerate(tasks) if task.load)
    return ElasticPlan(tuple(tasks), max((task.load for task in tasks), default=0.0), shares)


def _ranks_alone(task: Task, quota: float) -> int:
    """Return the ranks of a task that shares none. It never has more ranks than samples."""
    return min(task.batch, ceil(task.load / quota * (1.0 - ROUNDING)))


def _plan_or_raise(tasks: tuple[Task, ...], quota: float, memory: RankMemory, *, pack: bool) -> ElasticPlan:
    plan = plan_with_quota(tasks, quota, memory, pack=pack)
    if plan is None:
        raise ValueError(_explain_memory(tasks, memory, f"a quota of {quota:g}"))
    return plan


def _plan_within_budget(tasks: tuple[Task, ...], budget: int, memory: RankMemory) -> ElasticPlan:
    quota = _smallest_quota(tasks, budget, memory)
    plan = None if quota is None else plan_with_quota(tasks, quota, memory)
    if plan is None:
        raise ValueError(_explain_memory(tasks, memory, f"a budget of {budget} GPUs"))
    return plan


def _explain_memory(tasks: tuple[Task, ...], memory: RankMemory, what: str) -> str:
    budget = 1
    while budget <= MAX_GPUS:
        quota = _smallest_quota(tasks, budget, memory, prefer_few_gpus=True)
        plan = None if quota is None else plan_with_quota(tasks, quota, memory)
        if plan is not None:
            return f"{what} exceeds device memory; the smallest plan that fits needs {plan.gpus} GPUs"
        budget *= 2
    return f"{what} exceeds device memory, and so does any number of GPUs"


def _smallest_quota(
    tasks: tuple[Task, ...], budget: int, memory: RankMemory, *, prefer_few_gpus: bool = False
) -> float | None:
    """Return the smallest quota that needs at most `budget` GPUs; None if there is none.

    Args:
        prefer_few_gpus: return the quota that needs the fewest GPUs instead.
    """
    if len([task for task in tasks if task.load]) > MAX_TASKS_FOR_SUBSETS:
        return _search_quota(tasks, budget, memory, prefer_few_gpus=prefer_few_gpus)
    best: tuple[int, float] | None = None
    for quotas in _candidates(tasks, budget):
        needed = count_gpus(tasks, quotas, memory)
        fitting = np.flatnonzero((needed > 0) & (needed <= budget))
        if not fitting.size:
            continue
        if not prefer_few_gpus:
            return float(quotas[fitting[0]])
        first = fitting[np.argmin(needed[fitting])]
        best = min(filter(None, (best, (int(needed[first]), float(quotas[first])))))
    return None if best is None else best[1]


def _candidates(tasks: tuple[Task, ...], budget: int) -> Iterator[NDArray[np.float64]]:
    """Yield all quotas at which a plan changes, ascending, in blocks: equal parts of tasks, and sums of
    tasks."""
    loads = np.array([task.load for task in tasks if task.load])
    sums = np.zeros(1)
    for load in loads:
        sums = np.unique(np.concatenate((sums, sums + load)))
    parts = (loads[:, None] / np.arange(1, budget + 1)).ravel()
    one_sample = max(task.cost for task in tasks if task.load)
    quotas = np.unique(np.concatenate((sums, parts, [one_sample])))
    quotas = quotas[quotas >= _lower_bound(tasks, budget)]
    for begin in range(0, len(quotas), QUOTAS_PER_PASS):
        yield quotas[begin : begin + QUOTAS_PER_PASS]


def _lower_bound(tasks: Sequence[Task], budget: int) -> float:
    """Return a bound of the largest load: perfect balance, and one sample, which cannot be split."""
    total = sum(task.load for task in tasks)
    return max(total / budget * (1.0 - ROUNDING), *(task.cost for task in tasks if task.load))


def count_gpus(tasks: Sequence[Task], quotas: NDArray[np.float64], memory: RankMemory) -> NDArray[np.int64]:
    """Return the GPUs that `plan_with_quota` needs for each quota; 0 if memory forbids it."""
    active = [task for task in tasks if task.load]
    loads = np.array([task.load for task in active])
    batches = np.array([task.batch for task in active])
    parts = np.minimum(batches, np.ceil(loads / quotas[:, None] * (1.0 - ROUNDING))).astype(np.int64)
    is_heavy = parts > 1
    heavy_gpus = np.where(is_heavy, parts, 0).sum(axis=1)
    largest = -(-batches // parts)
    fits = (memory.fits(1.0, largest) | ~is_heavy).all(axis=1)
    # Load, tasks and samples of each bin.
    bins = np.zeros((3, len(quotas), len(active)))
    rows = np.arange(len(quotas))
    for index in sorted(range(len(active)), key=lambda index: (-loads[index], index)):
        is_light = ~is_heavy[:, index]
        has_room = bins[0] + loads[index] <= quotas[:, None] * (1.0 + ROUNDING)
        has_room &= memory.fits(bins[1] + 1.0, bins[2] + batches[index])
        chosen = has_room.argmax(axis=1)
        fits &= has_room[rows, chosen] | ~is_light
        for row, value in enumerate((loads[index], 1.0, batches[index])):
            bins[row, rows[is_light], chosen[is_light]] += value
    return np.where(fits, heavy_gpus + (bins[1] > 0).sum(axis=1), 0)


def _search_quota(
    tasks: tuple[Task, ...], budget: int, memory: RankMemory, *, prefer_few_gpus: bool
) -> float | None:
    """Return a quota found on finer and finer grids."""
    quotas = np.geomspace(_lower_bound(tasks, budget), sum(task.load for task in tasks), GRID)
    found: float | None = None
    for _ in range(GRID_ROUNDS):
        needed = count_gpus(tasks, quotas, memory)
        fitting = np.flatnonzero((needed > 0) & (needed <= budget))
        if not fitting.size:
            break
        if prefer_few_gpus:
            return float(quotas[fitting[np.argmin(needed[fitting])]])
        found = float(quotas[fitting[0]])
        if fitting[0] == 0:
            break
        quotas = np.linspace(quotas[fitting[0] - 1], found, GRID)
    return found


def _pack_first_fit(
    tasks: Sequence[Task], light: Sequence[int], quota: float, memory: RankMemory
) -> list[list[int]] | None:
    """Pack tasks first-fit decreasing; of equal loads, the first task goes first. None if memory forbids
    it."""
    bins: list[list[int]] = []
    for index in sorted(light, key=lambda index: (-tasks[index].load, index)):
        for held in bins:
            together = [*held, index]
            load = sum(tasks[member].load for member in together)
            samples = sum(tasks[member].batch for member in together)
            if load <= quota * (1.0 + ROUNDING) and memory.fits(len(together), samples):
                held.append(index)
                break
        else:
            if not memory.fits(1.0, tasks[index].batch):
                return None
            bins.append([index])
    return [sorted(held) for held in bins]
