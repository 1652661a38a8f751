"""Numbers of workers that are no powers of two, where a function's experts or shards allow them (3, 6, 12).

Blocks of GPUs are powers of two, so that all jobs can be placed (ElasticFlow 4.3). So a job on three workers
holds four GPUs, the smallest block with room for them (decision 0018). Plans, placement and promises count
GPUs held; curves are measured, and generations built, for workers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

MOST_WORKERS = 4096
"""In one generation."""


def gpus_held(workers: int) -> int:
    """GPUs that a job on ``workers`` workers holds: the next power of two."""
    return 1 << max(0, workers - 1).bit_length()


def measurable_levels(
    global_batch_size: int, total_gpus: int, worker_counts: Collection[int] = ()
) -> list[int]:
    """Numbers of workers that divide the global batch and fit on ``total_gpus`` GPUs, ascending.

    ``worker_counts``: the numbers that the function declares. Without any: powers of two up to the first that
    does not divide the batch.
    """
    most = min(global_batch_size, total_gpus)
    if worker_counts:
        dividing = (count for count in sorted(worker_counts) if global_batch_size % count == 0)
        return [count for count in dividing if count <= most and gpus_held(count) <= total_gpus]
    levels = []
    level = 1
    while level <= most and global_batch_size % level == 0:
        levels.append(level)
        level *= 2
    return levels


def workers_by_gpus(measured: Iterable[int], global_batch_size: int) -> dict[int, int]:
    """The number of workers with which a job trains, by GPUs held.

    It is the largest measured number that divides the batch and holds that many GPUs.
    """
    return {
        gpus_held(workers): workers
        for workers in sorted(measured)
        if workers <= global_batch_size and global_batch_size % workers == 0
    }
