"""The order of samples, which does not depend on the number of workers.

Positions 0, 1, 2, … run through one permutation of the data set per epoch, drawn from the job's seed and the
epoch alone. Iteration k takes positions k·B … (k+1)·B - 1, and rank r of n a contiguous slice of those.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from punctual.randomness import derive_seed

EMPTY_DIGEST = ""


def local_slice(global_batch_size: int, rank: int, world_size: int) -> tuple[int, int]:
    """Return the first and one-past-last place of `rank`'s share of a global batch; shares differ by at most
    one sample."""
    share, rest = divmod(global_batch_size, world_size)
    first = rank * share + min(rank, rest)
    return first, first + share + (1 if rank < rest else 0)


def largest_local_batch(global_batch_size: int, world_size: int) -> int:
    """Return the size of the largest local batch."""
    return -(-global_batch_size // world_size)


class SampleOrder:
    """The samples of each iteration."""

    def __init__(self, dataset_size: int, global_batch_size: int, seed: int) -> None:
        if dataset_size < 1:
            raise ValueError("the data set is empty")
        self.dataset_size = dataset_size
        self.global_batch_size = global_batch_size
        self.seed = seed
        self._permutations: dict[int, Tensor] = {}

    def global_batch(self, iteration: int) -> Tensor:
        """Return the indices (int64) of iteration `iteration`'s samples; it may span the end of an epoch."""
        first = iteration * self.global_batch_size
        last = first + self.global_batch_size
        pieces = []
        while first < last:
            epoch, offset = divmod(first, self.dataset_size)
            taken = min(last - first, self.dataset_size - offset)
            pieces.append(self._permutation(epoch)[offset : offset + taken])
            first += taken
        return torch.cat(pieces)

    def local_places(self, rank: int, world_size: int) -> Tensor:
        """Return the places of a rank's samples in the global batch."""
        return torch.arange(*local_slice(self.global_batch_size, rank, world_size))

    def busiest_rank(self, world_size: int) -> int:
        """Return a rank with the largest local batch."""
        return 0

    def known_until(self, iteration: int) -> int | None:
        """Return the first iteration whose samples are unknown at `iteration`; None if all are known."""
        return None

    def _permutation(self, epoch: int) -> Tensor:
        if epoch not in self._permutations:
            generator = torch.Generator()
            generator.manual_seed(derive_seed(self.seed, "epoch", epoch))
            # A batch spans at most two epochs, unless it is larger than the data set.
            self._permutations = {
                known: order for known, order in self._permutations.items() if known >= epoch - 1
            }
            self._permutations[epoch] = torch.randperm(self.dataset_size, generator=generator)
        return self._permutations[epoch]


def chain_digest(previous: str, indices: Tensor) -> str:
    """Return the running digest of all samples in order, extended by one iteration's samples."""
    digest = hashlib.sha256(previous.encode())
    digest.update(indices.to(torch.int64).numpy().astype("<i8", copy=False).tobytes())
    return digest.hexdigest()
