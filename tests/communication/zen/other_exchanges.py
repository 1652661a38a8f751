"""Reference exchanges of the other schemes, step by step in memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from communication.zen.balance import pull_imbalance, push_imbalance
from communication.zen.indices import Values, nonzero_indices
from communication.zen.reference_exchange import COO_BYTES, Exchanged
from communication.zen.sparsity import contiguous_parts


def agsparse_exchange(gradients: Sequence[Values]) -> Exchanged:
    """Run AGsparse: all workers gather all COO."""
    sizes = [COO_BYTES * int(np.count_nonzero(gradient)) for gradient in gradients]
    received = tuple(sum(sizes) - own for own in sizes)
    return Exchanged(_summed(gradients), received, (0,) * len(gradients))


def sparcml_exchange(gradients: Sequence[Values]) -> Exchanged:
    """Run SparCML: pairs at doubling distance exchange the COO of their sums so far. Raises ValueError unless
    the number of workers is a power of two."""
    workers = len(gradients)
    if workers & (workers - 1):
        raise ValueError(
            f"recursive doubling among {workers} workers is impossible; there must be a power of two"
        )
    held = list(gradients)
    received = [0] * workers
    distance = 1
    while distance < workers:
        for worker in range(workers):
            received[worker] += COO_BYTES * int(np.count_nonzero(held[worker ^ distance]))
        held = [held[min(w, w ^ distance)] + held[max(w, w ^ distance)] for w in range(workers)]
        distance *= 2
    return Exchanged(held[0], tuple(received), (0,) * workers)


def sparse_ps_exchange(gradients: Sequence[Values]) -> Exchanged:
    """Run a sparse parameter server: COO of contiguous equal parts to their servers, and back."""
    workers, elements = len(gradients), len(gradients[0])
    counts = np.stack(
        [
            np.bincount(contiguous_parts(nonzero_indices(each), elements, workers), minlength=workers)
            for each in gradients
        ]
    )
    total = _summed(gradients)
    union = np.flatnonzero(np.any([gradient != 0 for gradient in gradients], axis=0)) + 1
    owned = np.bincount(contiguous_parts(union, elements, workers), minlength=workers)
    sent = np.bincount(contiguous_parts(nonzero_indices(total), elements, workers), minlength=workers)
    return Exchanged(
        total,
        tuple(COO_BYTES * int(counts[:, server].sum() - counts[server, server]) for server in range(workers)),
        tuple(COO_BYTES * int(sent.sum() - own) for own in sent),
        push_imbalance(list(counts)),
        pull_imbalance(owned),
    )


def _summed(gradients: Sequence[Values]) -> Values:
    total = gradients[0].copy()
    for gradient in gradients[1:]:
        total += gradient
    return total
