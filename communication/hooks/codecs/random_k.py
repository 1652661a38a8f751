"""Random-k: values at random indices that are equal on all ranks (Stich and others, 2018)."""

from __future__ import annotations

import torch
from torch import Tensor

from communication.hooks.codecs.sparse import SparseCodec

_WORD = 0xFFFFFFFF


class RandomK(SparseCodec):
    """Sends one element out of each of k equal runs: without replacement, in O(k).

    All elements of a run are equally likely. The choice follows from the seed by integer arithmetic, so ranks
    with the same seed choose alike on any device.
    """

    name = "random-k"

    def select(self, values: Tensor, kept: int, seed: int) -> Tensor:
        """`SparseCodec.select`, in ascending order."""
        numbers = torch.arange(kept + 1, dtype=torch.int64, device=values.device)
        begins = numbers * len(values) // kept
        # The product's upper bits spread a number below 2^32 evenly over the run.
        return begins[:-1] + (mixed(numbers[:-1], seed) * begins.diff() >> 32)


def mixed(numbers: Tensor, seed: int) -> Tensor:
    """Return pseudo-random integers below 2^32: MurmurHash3's finalizer on numbers offset by a seed."""
    word = (numbers * 0x9E3779B1 + (seed & _WORD)) & _WORD
    word = ((word ^ word >> 16) * 0x85EBCA6B) & _WORD
    word = ((word ^ word >> 13) * 0xC2B2AE35) & _WORD
    return word ^ word >> 16
