"""Buddy blocks: the cluster's GPUs as aligned blocks of powers of two (ElasticFlow section 4.3).

The GPUs of each usable server are cut into the largest aligned blocks: one of 8 for a server of 8, a 4 and a
2 for a server of 6. A job that fits into a block sits in an aligned part of one block. A larger job takes
whole blocks, normally whole servers. If all sizes are powers of two, repacking finds a place whenever enough
GPUs are free: free GPUs then always form aligned parts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scheduling.core.question.snapshot import IntArray, ServerSnapshot

NOWHERE = -1


class Blocks(NamedTuple):
    """The blocks of a cluster in address order. An address is a GPU's number in topology order."""

    #: First address of each block.
    base: IntArray
    #: GPUs of each block.
    size: IntArray
    #: Number of each block's server.
    server: IntArray
    #: Number of each block's rack.
    rack: IntArray
    #: Block of each address; NOWHERE for a GPU that may not be used.
    block_of: IntArray


def blocks_of(servers: tuple[ServerSnapshot, ...]) -> Blocks:
    """Cut the GPUs of all usable servers into the largest aligned blocks."""
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
                cuts[server.gpus] = aligned_cuts(server.gpus)
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


def aligned_cuts(gpus: int) -> list[tuple[int, int]]:
    """(offset, size) of each of the largest aligned blocks of a server with ``gpus`` GPUs."""
    cuts: list[tuple[int, int]] = []
    offset = 0
    while offset < gpus:
        size = 1
        while offset % (2 * size) == 0 and offset + 2 * size <= gpus:
            size *= 2
        cuts.append((offset, size))
        offset += size
    return cuts
