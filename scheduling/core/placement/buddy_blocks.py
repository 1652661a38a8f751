"""The cluster's GPUs as aligned blocks of powers of two (ElasticFlow section 4.3; spec 2.9).

Each server's usable GPUs are cut into the largest aligned blocks: one of 8 for a server of 8, a 4
and a 2 for a server of 6. A job of at most a block's size sits in an aligned part of one block; a
larger job takes whole blocks, normally whole servers. With sizes that are powers of two this can
always be done when enough GPUs are free: free space is a union of aligned parts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scheduling.core.question.snapshot import IntArray, ServerSnapshot

NOWHERE = -1


class Blocks(NamedTuple):
    """``base`` and ``size``: first address and GPUs of each block, in address order.

    ``server`` and ``rack`` number the block's server and rack. ``block_of`` gives the block of
    every address, NOWHERE for GPUs that may not be used.
    """

    base: IntArray
    size: IntArray
    server: IntArray
    rack: IntArray
    block_of: IntArray


def blocks_of(servers: tuple[ServerSnapshot, ...]) -> Blocks:
    """Cut all usable GPUs into largest aligned blocks."""
    base: list[int] = []
    size: list[int] = []
    server_of: list[int] = []
    rack_of: list[int] = []
    racks: dict[str, int] = {}
    cuts: dict[int, list[tuple[int, int]]] = {}
    first = 0
    for number, server in enumerate(servers):
        if server.usable:
            rack = racks.setdefault(server.rack, len(racks))
            if server.gpus not in cuts:
                cuts[server.gpus] = _aligned_cuts(server.gpus)
            for offset, gpus in cuts[server.gpus]:
                base.append(first + offset)
                size.append(gpus)
                server_of.append(number)
                rack_of.append(rack)
        first += server.gpus
    block_of = np.full(first, NOWHERE, dtype=np.int64)
    bases = np.array(base, dtype=np.int64)
    sizes = np.array(size, dtype=np.int64)
    if sizes.size:
        inside = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        block_of[np.repeat(bases, sizes) + inside] = np.repeat(np.arange(sizes.size), sizes)
    return Blocks(
        base=bases,
        size=sizes,
        server=np.array(server_of, dtype=np.int64),
        rack=np.array(rack_of, dtype=np.int64),
        block_of=block_of,
    )


def _aligned_cuts(gpus: int) -> list[tuple[int, int]]:
    """(offset, size) of the largest aligned blocks of a server of so many GPUs."""
    cuts: list[tuple[int, int]] = []
    offset = 0
    while offset < gpus:
        size = 1
        while offset % (2 * size) == 0 and offset + 2 * size <= gpus:
            size *= 2
        cuts.append((offset, size))
        offset += size
    return cuts
