"""Numbers of workers other than powers of two, where a function's experts or shards allow certain ones (3, 6,
12).

Blocks are powers of two, and that everybody can be placed rests on it (ElasticFlow 4.3). So a job on three
workers holds four GPUs: the smallest block that has room for them (decision 0041). Plans, placement and
promises count GPUs that are held; curves are measured, and generations made, for workers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

MOST_WORKERS = 4096
"""In one generation."""


def gpus_held(workers: int) -> int:
    """GPUs that a job on so many workers holds: the next power of two."""
    return 1 << max(0, workers - 1).bit_length()


def measurable_levels(
    global_batch_size: int, total_gpus: int, worker_counts: Collection[int] = ()
) -> list[int]:
    """Numbers of workers that divide the global batch and find room on so many GPUs, ascending.

    ``worker_counts``: those that the function declares; none: powers of two up to the first that does not
    divide the batch.
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
    """By GPUs held, the workers that a job trains with on them: of the measured numbers that divide its batch
    the largest that holds so many."""
    return {
        gpus_held(workers): workers
        for workers in sorted(measured)
        if workers <= global_batch_size and global_batch_size % workers == 0
    }
