"""All-to-alls of all ranks computed in one place, as a reference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from moe.moesys.hierarchical_exchange import exchange_steps

Rows = NDArray[np.float64]
Counts = NDArray[np.int64]


def flat_exchange(rows: Sequence[Rows], counts: Counts) -> list[Rows]:
    """Return the rows that each rank receives, ordered by source."""
    return _receive(rows, counts, [list(range(len(counts)))] * len(counts), list(range(len(counts))))


def after_first_phase(rows: Sequence[Rows], counts: Counts, ranks_per_server: int) -> list[Rows]:
    """Return the rows of each rank between the phases: by local source, then by destination server."""
    steps = [exchange_steps(counts, rank, ranks_per_server) for rank in range(len(counts))]
    sent = [own[step.before] for own, step in zip(rows, steps, strict=True)]
    servers = [rank // ranks_per_server for rank in range(len(counts))]
    peers = [list(range(server * ranks_per_server, (server + 1) * ranks_per_server)) for server in servers]
    splits = np.array([step.within.send for step in steps])
    return _receive(sent, splits, peers, [rank % ranks_per_server for rank in range(len(counts))])


def hierarchical_exchange(rows: Sequence[Rows], counts: Counts, ranks_per_server: int) -> list[Rows]:
    """Return the rows that each rank receives after both phases."""
    steps = [exchange_steps(counts, rank, ranks_per_server) for rank in range(len(counts))]
    between = after_first_phase(rows, counts, ranks_per_server)
    sent = [own[step.regroup] for own, step in zip(between, steps, strict=True)]
    peers = [
        list(range(rank % ranks_per_server, len(counts), ranks_per_server)) for rank in range(len(counts))
    ]
    splits = np.array([step.between.send for step in steps])
    return _receive(sent, splits, peers, [rank // ranks_per_server for rank in range(len(counts))])


def _receive(
    sent: Sequence[Rows], splits: Counts, peers: Sequence[Sequence[int]], places: Sequence[int]
) -> list[Rows]:
    """Return for each rank the blocks of its peers at its own place in their splits."""
    ends = np.concatenate((np.zeros((len(splits), 1), dtype=np.int64), splits.cumsum(axis=1)), axis=1)
    return [
        np.concatenate([sent[peer][ends[peer, place] : ends[peer, place + 1]] for peer in peers[rank]])
        for rank, place in enumerate(places)
    ]
