"""The reference exchange: the traffic and result of Zen, step by step in memory.

Nothing is sent. Tests compare implementations with the sums, and formulas with the bytes. All counts are in
elements (Zen 3.2.4 and 3.3.4; steps 2 to 8 of the full exchange).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from communication.zen.balance import pull_imbalance, push_imbalance
from communication.zen.formats import INDEX_BYTES, VALUE_BYTES, Format, smallest_format
from communication.zen.hash_bitmap import bitmap_bytes, bitmap_decode, bitmap_encode
from communication.zen.hash_family import HashFunctions
from communication.zen.indices import Indices, Values, nonzero_indices
from communication.zen.partitioning import PartitionTable, partition_table, partitioned

COO_BYTES = INDEX_BYTES + VALUE_BYTES


@dataclass(frozen=True)
class Exchanged:
    """The result of an exchange.

    Attributes:
        total: the sum that every worker has.
        push_bytes, pull_bytes: that each worker received from others in each phase, without headers and
            counts; all in the first if there is one phase.
        push_imbalance, pull_imbalance: of what was sent and of what was aggregated.
    """

    total: Values
    push_bytes: tuple[int, ...]
    pull_bytes: tuple[int, ...]
    push_imbalance: float = 1.0
    pull_imbalance: float = 1.0

    @property
    def received_bytes(self) -> tuple[int, ...]:
        """By worker, over both phases."""
        return tuple(push + pull for push, pull in zip(self.push_bytes, self.pull_bytes, strict=True))


def zen_exchange(
    gradients: Sequence[Values], hashes: HashFunctions, pull_format: Format | None = None
) -> Exchanged:
    """Run Zen: COO to the server given by h0; hash bitmap, COO or the dense part back.

    ``pull_format``: dense, COO or hash bitmap; by default the smallest for what was aggregated.
    """
    workers, elements = len(gradients), len(gradients[0])
    table = partition_table(elements, workers, hashes)
    counts, aggregated = _pushed(gradients, table, hashes)
    nonzeros = np.array([np.count_nonzero(part) for part in aggregated])
    form = pull_format or smallest_format(int(nonzeros.sum()) / elements if elements else 0.0)
    total = np.zeros_like(gradients[0])
    sent = []
    for members, part in zip(table.members, aggregated, strict=True):
        if form is Format.HASH_BITMAP:
            bitmap = bitmap_encode(part)
            total[bitmap_decode(bitmap, members) - 1] = part[part != 0]
            sent.append(bitmap_bytes(len(members)) + VALUE_BYTES * int(np.count_nonzero(part)))
        else:
            total[members - 1] = part
            coo = COO_BYTES * int(np.count_nonzero(part))
            sent.append(VALUE_BYTES * len(part) if form is Format.DENSE else coo)
    owned = np.array([len(part) for part in _owned(gradients, table)])
    return Exchanged(
        total,
        tuple(COO_BYTES * int(counts[:, server].sum() - counts[server, server]) for server in range(workers)),
        tuple(sum(sent) - own for own in sent),
        push_imbalance(list(counts)),
        pull_imbalance(owned),
    )


def _pushed(
    gradients: Sequence[Values], table: PartitionTable, hashes: HashFunctions
) -> tuple[NDArray[np.int64], list[Values]]:
    """Return non-zeros by worker and server, and each server's aggregated part in its members' order."""
    parts = len(table.members)
    counts = np.zeros((len(gradients), parts), np.int64)
    aggregated: list[Values] = [np.zeros(len(each), gradients[0].dtype) for each in table.members]
    for worker, gradient in enumerate(gradients):
        indices = nonzero_indices(gradient)
        found = partitioned(indices, parts, hashes)
        counts[worker] = found.counts
        for server, mine in enumerate(found.split(indices)):
            aggregated[server][table.position[mine - 1]] += gradient[mine - 1]
    return counts, aggregated


def _owned(gradients: Sequence[Values], table: PartitionTable) -> list[Indices]:
    """Return the union of pushed indices by server: an index that cancels to zero counts as aggregated."""
    touched = np.zeros(len(gradients[0]), bool)
    for gradient in gradients:
        touched |= gradient != 0
    return [members[touched[members - 1]].astype(np.int64) for members in table.members]
