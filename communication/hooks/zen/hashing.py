"""MurmurHash3 x86-32 on any device: the same bits as `communication/zen/hash_family.py`."""

from __future__ import annotations

from torch import Tensor

from communication.zen.hash_family import (
    BLOCK_FIRST,
    BLOCK_ROTATION,
    BLOCK_SECOND,
    FINAL_FIRST,
    FINAL_SECOND,
    KEY_BYTES,
    STATE_ADDEND,
    STATE_FACTOR,
    STATE_ROTATION,
)

_WORD = 0xFFFFFFFF


def murmur3(keys: Tensor, seed: int) -> Tensor:
    """Return the hash of each key, 0 to 2^32 - 1 in int64, taken as four little-endian bytes.

    Results are int64 as well, because GPUs have no unsigned arithmetic; the lower 32 bits are right even if a
    product wraps around at 64."""
    block = _rotated(keys * BLOCK_FIRST & _WORD, BLOCK_ROTATION) * BLOCK_SECOND & _WORD
    state = _rotated(block ^ seed, STATE_ROTATION) * STATE_FACTOR + STATE_ADDEND & _WORD
    state ^= KEY_BYTES
    state ^= state >> 16
    state = state * FINAL_FIRST & _WORD
    state ^= state >> 13
    state = state * FINAL_SECOND & _WORD
    return state ^ state >> 16


def _rotated(words: Tensor, bits: int) -> Tensor:
    return (words << bits | words >> 32 - bits) & _WORD
