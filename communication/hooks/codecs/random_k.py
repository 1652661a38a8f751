"""Random-k: values at indices that chance chooses, the same on all ranks (Stich and others, 2018)."""

from __future__ import annotations

import torch
from torch import Tensor

from communication.hooks.codecs.sparse import SparseCodec

_WORD = 0xFFFFFFFF


class RandomK(SparseCodec):
    """One element out of each of k equal runs of neighbours, so without replacement and in the time that k
    elements take.

    Every element is as likely as its neighbours. Which ones they are follows from the seed alone, by
    integers: ranks with the same seed choose alike, on whatever devices they are.
    """

    name = "random-k"

    def select(self, values: Tensor, kept: int, seed: int) -> Tensor:
        """`SparseCodec.select`: ascending."""
        numbers = torch.arange(kept + 1, dtype=torch.int64, device=values.device)
        begins = numbers * len(values) // kept
        # The upper bits of a number below 2^32 times the width of a run are evenly spread over the run.
        return begins[:-1] + (mixed(numbers[:-1], seed) * begins.diff() >> 32)


def mixed(numbers: Tensor, seed: int) -> Tensor:
    """Integers below 2^32 that look like chance: the finalizer of MurmurHash3 on numbers from a seed on."""
    word = (numbers * 0x9E3779B1 + (seed & _WORD)) & _WORD
    word = ((word ^ word >> 16) * 0x85EBCA6B) & _WORD
    word = ((word ^ word >> 13) * 0xC2B2AE35) & _WORD
    return word ^ word >> 16
