"""The hash bitmap: one bit for each index that a server owns, at any place (Zen 3.3.4, Algorithm 3.3).

Worker and server both know the indices of a partition in ascending order. So a bit for each suffices to mark
non-zeros, and all servers' bitmaps together have one bit per element, for any number of servers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from communication.zen.indices import Indices, Values


def bitmap_encode(values: Values) -> NDArray[np.uint8]:
    """Return the bitmap of a partition's aggregated gradients, in the order of its members: bit t in byte
    t >> 3 at place t & 7, padded with zeros."""
    return np.packbits(values != 0, bitorder="little")


def bitmap_decode(bitmap: NDArray[np.uint8], members: NDArray[np.integer]) -> Indices:
    """Return the indices whose bits are set."""
    bits = np.unpackbits(bitmap, count=len(members), bitorder="little")
    return members[np.flatnonzero(bits)].astype(np.int64)


def bitmap_bytes(members: int) -> int:
    """Return the size of a partition's bitmap."""
    return -(-members // 8)
