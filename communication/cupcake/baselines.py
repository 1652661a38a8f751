"""Cupcake's baselines: FP32, GRACE, HiPress, and fusion without a search."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from communication.cupcake.exchange import Exchange
from communication.cupcake.partitions import (
    BUCKET_BYTES,
    EVEN_GROUPS,
    Boundaries,
    bucket_fusion,
    even_split,
    layer_wise,
    naive_fusion,
    single_group,
)
from communication.cupcake.problem import FusionProblem
from communication.cupcake.timeline import in_order, iteration_seconds

#: The baselines by their published names.
FP32, GRACE, HIPRESS = "FP32", "GRACE", "HiPress"
BUCKETS, EVEN, SINGLE, NAIVE = "Bucket Fusion", "Evenly Split", "Single group", "Naive fusion"


@dataclass(frozen=True, slots=True)
class Baseline:
    """A baseline and its iteration time. ``boundaries``: of its groups."""

    name: str
    boundaries: Boundaries
    iteration_seconds: float


def baselines(exchange: Exchange) -> dict[str, Baseline]:
    """Return all baselines by name. Those that compress use the exchange's codec; without one GRACE and
    HiPress send each tensor separately and uncompressed."""
    dense = fp32(exchange)
    problem = exchange.problem()
    found = [dense, *fused_without_search(problem), hipress(exchange)]
    return {one.name: one for one in found}


def fp32(exchange: Exchange) -> Baseline:
    """Return uncompressed all-reduce with the framework's buckets at their best size."""
    problem = replace(exchange, codec=None).problem()
    return _best(problem, FP32, (bucket_fusion(problem.sizes_bytes, size) for size in BUCKET_BYTES))


def fused_without_search(problem: FusionProblem) -> list[Baseline]:
    """Return GRACE (each tensor alone), one group, the best bucket size, the best even split, and halves."""
    tensors = problem.tensors
    buckets = (bucket_fusion(problem.sizes_bytes, size) for size in BUCKET_BYTES)
    return [
        _best(problem, GRACE, [layer_wise(tensors)]),
        _best(problem, SINGLE, [single_group(tensors)]),
        _best(problem, BUCKETS, buckets),
        _best(problem, EVEN, (even_split(tensors, count) for count in EVEN_GROUPS)),
        _best(problem, NAIVE, [naive_fusion(tensors)]),
    ]


def hipress(exchange: Exchange) -> Baseline:
    """Return each tensor alone, compressed if that saves more communication than encoding takes."""
    compressed, dense = exchange.problem(), replace(exchange, codec=None).problem()
    ends = np.arange(1, compressed.tensors + 1)
    work, transfer = compressed.work_and_transfer(ends - 1, ends)
    dense_work, dense_transfer = dense.work_and_transfer(ends - 1, ends)
    compresses = dense_transfer - transfer > work - dense_work
    timeline = in_order(
        np.where(compresses, work, dense_work),
        np.where(compresses, transfer, dense_transfer),
        compressed.other_seconds,
    )
    return Baseline(HIPRESS, layer_wise(compressed.tensors), timeline.iteration_seconds)


def _best(problem: FusionProblem, name: str, tried: Iterable[Boundaries]) -> Baseline:
    """Return the fastest of some partitions; of equal ones the first."""
    found = {one: iteration_seconds(problem, one) for one in tried}
    boundaries = min(found, key=found.__getitem__)
    return Baseline(name, boundaries, found[boundaries])
