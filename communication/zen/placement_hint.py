"""How well a placement suits an exchange of all with all: its slowest pair of servers holds everybody up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def slowest_pair(bytes_per_second: NDArray[np.float64], servers: Sequence[int]) -> float:
    """The bandwidth of the slowest pair of these servers, in either direction; endless for one server.

    ``bytes_per_second``: from each server to each other one, as the cluster's link matrix has it.
    Raises ValueError where a server is named twice or is not in the matrix.
    """
    count = len(bytes_per_second)
    if bytes_per_second.shape != (count, count):
        raise ValueError(f"a link matrix is square, not {bytes_per_second.shape}")
    chosen = np.asarray(servers, dtype=np.int64)
    if len(np.unique(chosen)) < len(chosen) or np.any((chosen < 0) | (chosen >= count)):
        raise ValueError(f"servers {list(servers)} are not different ones of {count}")
    if len(chosen) < 2:
        return float("inf")
    among = bytes_per_second[np.ix_(chosen, chosen)]
    return float(among[~np.eye(len(chosen), dtype=bool)].min())


def best_placement(
    bytes_per_second: NDArray[np.float64], candidates: Sequence[Sequence[int]]
) -> Sequence[int]:
    """The candidate whose slowest pair is the fastest; of equal ones the first. Raises ValueError without
    any."""
    if not candidates:
        raise ValueError("there is no placement to choose from")
    return max(candidates, key=lambda servers: slowest_pair(bytes_per_second, servers))
