"""Rows and splits of each rank in a hierarchical all-to-all.

Ranks are numbered server by server: r = server · g + local. A rank's rows are ordered by destination. What it
receives is ordered by source, bit for bit as after a flat all-to-all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moe.moesys.checks import check_at_least

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PhaseSplits:
    """(members): rows that a rank sends to, and receives from, each member of its group."""

    send: Counts
    receive: Counts


@dataclass(frozen=True, slots=True)
class ExchangeSteps:
    """The steps of one rank.

    Attributes:
        within: splits among the ranks of its server, by local number.
        between: splits among the ranks of its rail, by server.
        before: (rows): order of its rows for the first phase: by local number of the destination, then by
            server.
        regroup: (rows): order of the rows after the first phase for the second: by destination server, then
            by local number of the source.
    """

    within: PhaseSplits
    between: PhaseSplits
    before: Counts
    regroup: Counts


def exchange_steps(counts: Counts, rank: int, ranks_per_server: int) -> ExchangeSteps:
    """Return the steps of one rank.

    Args:
        counts: (ranks, ranks): rows from each source to each destination.

    Raises:
        ValueError: counts are not square or negative, ranks do not fill servers, or there is no such rank.
    """
    by_server = _split_by_server(counts, ranks_per_server)
    if not 0 <= rank < len(counts):
        raise ValueError(f"rank is {rank}; it must be from 0 to {len(counts) - 1}")
    server, local = divmod(rank, ranks_per_server)
    # (local source, destination server, destination local)
    own = by_server[server]
    # (local source, destination server): rows that pass through this rank
    passing = own[:, :, local]
    return ExchangeSteps(
        within=PhaseSplits(send=own[local].sum(axis=0), receive=passing.sum(axis=1)),
        between=PhaseSplits(send=passing.sum(axis=0), receive=by_server[:, :, server, local].sum(axis=1)),
        before=_transposing_order(own[local]),
        regroup=_transposing_order(passing),
    )


def messages_between(servers: int, ranks_per_server: int) -> tuple[int, int]:
    """Return the messages of a rank to other servers: flat, and hierarchical."""
    check_at_least("servers", servers)
    check_at_least("ranks_per_server", ranks_per_server)
    return (servers - 1) * ranks_per_server, servers - 1


def _split_by_server(counts: Counts, ranks_per_server: int) -> Counts:
    """Return counts as (source server, source local, destination server, destination local)."""
    check_at_least("ranks_per_server", ranks_per_server)
    if counts.ndim != 2 or counts.shape[0] != counts.shape[1]:
        raise ValueError(f"counts has the shape {counts.shape}; it must be sources by destinations")
    if (counts < 0).any():
        raise ValueError("counts has negative values; each must be at least 0")
    if not len(counts) or len(counts) % ranks_per_server:
        raise ValueError(f"counts has {len(counts)} ranks, which do not fill servers of {ranks_per_server}")
    servers = len(counts) // ranks_per_server
    return counts.reshape(servers, ranks_per_server, servers, ranks_per_server)


def _transposing_order(counts: Counts) -> Counts:
    """Return the permutation that turns rows ordered by (row, column) of `counts` into (column, row)."""
    ends = np.cumsum(counts.ravel())
    begins = (ends - counts.ravel()).reshape(counts.shape)
    blocks = [
        np.arange(begin, begin + count)
        for begin, count in zip(begins.T.ravel(), counts.T.ravel(), strict=True)
    ]
    return np.concatenate(blocks) if blocks else np.zeros(0, dtype=np.int64)
