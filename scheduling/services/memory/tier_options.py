"""GPUs that a model with experts needs with and without tiers, and seconds of an iteration on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cluster.models import Cluster
from moe.planning.memory import ModelSizes, WorkerMemory, fewest_workers, find_binding
from scheduling.core.question.worker_counts import MOST_WORKERS, gpus_held, workers_by_gpus
from scheduling.models import CurveLevel, ScalingCurve
from scheduling.services.memory.expert_levels import worker_memory
from scheduling.services.memory.mixture_models import model_sizes


def tier_options(
    cluster: Cluster, curve: ScalingCurve, levels: Iterable[CurveLevel], global_batch_size: int
) -> dict[str, Any] | None:
    """Return the tiers for a verdict; None if the model's sizes are unknown or it has no experts."""
    if curve.mixture is None:
        return None
    share = worker_memory(cluster, curve.gpu_kind)
    return modes(model_sizes(curve.mixture), share, levels, global_batch_size)


def modes(
    sizes: ModelSizes, share: WorkerMemory, levels: Iterable[CurveLevel], global_batch_size: int
) -> dict[str, Any]:
    """Return what a model needs with the states of all experts in tiers, and with none.

    An option is a Pareto-optimal pair of GPUs and seconds of an iteration. Seconds without tiers are at most
    those that were measured with tiers. Nothing is known of seconds with tiers before they are measured.
    """
    by_workers = {level.gpus: level for level in levels}
    seconds = {
        workers: 1.0 / by_workers[workers].iterations_per_second
        for workers in workers_by_gpus(by_workers, global_batch_size).values()
    }
    return {
        "with_tiers": _mode(sizes.in_tiers(), share, seconds if sizes.has_tiers else {}, is_bound=False),
        "without_tiers": _mode(sizes.in_tiers(False), share, seconds, is_bound=sizes.has_tiers),
    }


def _mode(
    sizes: ModelSizes, share: WorkerMemory, seconds: Mapping[int, float], *, is_bound: bool
) -> dict[str, Any]:
    """Return the fewest GPUs, what binds below them, and the options.

    Args:
        seconds: of an iteration, by the number of workers.
        is_bound: whether they are upper bounds.
    """
    fewest = fewest_workers(sizes, share)
    one_less = (MOST_WORKERS if fewest is None else fewest) - 1
    binding = find_binding(sizes, share, one_less) if one_less else None
    fitting = {} if fewest is None else {each: seconds[each] for each in seconds if each >= fewest}
    return {
        "gpus": None if fewest is None else gpus_held(fewest),
        "binding": "" if binding is None else str(binding),
        "options": [
            {"gpus": gpus_held(workers), "step_seconds": fitting[workers], "is_upper_bound": is_bound}
            for workers in _pareto(fitting)
        ],
    }


def _pareto(seconds: Mapping[int, float]) -> list[int]:
    """Return the numbers of workers on which an iteration is faster than on all smaller ones."""
    best, found = float("inf"), []
    for workers in sorted(seconds):
        if seconds[workers] < best:
            best = seconds[workers]
            found.append(workers)
    return found
