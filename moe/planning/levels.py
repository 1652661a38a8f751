"""Numbers of workers over which experts and a batch divide evenly (MoESys)."""

from __future__ import annotations

from collections.abc import Collection


def divides_evenly(experts: Collection[int], workers: int) -> bool:
    """Return whether all workers have equally many experts of each layer, or all experts equally many
    workers."""
    return all(count % workers == 0 or workers % count == 0 for count in experts)


def gang_levels(experts: Collection[int], global_batch_size: int, most: int) -> list[int]:
    """Return the numbers of workers on which to measure, ascending, at most one for each block of GPUs.

    A block has as many GPUs as a power of two. Of the numbers above half of it that divide the batch, the
    largest one counts over which the experts divide evenly. If there is none, the block itself counts, if it
    divides the batch: then some workers have an expert more than others.

    Args:
        experts: of each layer.
        most: the largest number of workers.
    """
    if not experts or min(experts) < 1:
        raise ValueError(f"experts are {sorted(experts)}; each layer must have at least 1")
    levels = []
    block = 1
    while block < 2 * most:
        dividing = [
            workers for workers in range(min(block, most), block // 2, -1) if global_batch_size % workers == 0
        ]
        even = next((workers for workers in dividing if divides_evenly(experts, workers)), None)
        if even is not None:
            levels.append(even)
        elif block in dividing:
            levels.append(block)
        block *= 2
    return levels
