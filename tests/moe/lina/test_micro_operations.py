"""Micro-operations: worked example V4, and invariants."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moe.lina.micro_operations import (
    MicroOperation,
    Traffic,
    count_pieces,
    cut,
    piece_lengths,
)

MEGABYTE = 1_000_000


def test_v4_pieces():
    assert piece_lengths(10, 4) == (3, 3, 3, 1)
    assert piece_lengths(6, 4) == (2, 2, 2)
    assert [count_pieces(size * MEGABYTE) for size in (154.4, 21, 61, 30, 0)] == [6, 1, 3, 1, 1]


def test_v4_all_to_all_is_cut_along_the_capacity():
    # Each of 16 experts takes 2 / 16 of 6144 tokens, of 512 elements with 4 bytes.
    rows, payload = 768, 25_165_824
    for partition, expected in ((30, [(0, 768)]), (10, [(0, 256), (256, 256), (512, 256)])):
        pieces = cut(Traffic.ALL_TO_ALL, "layer 3", rows, payload // rows, partition * MEGABYTE)
        assert [(piece.first, piece.length) for piece in pieces] == expected


@given(st.integers(0, 5000), st.integers(1, 8), st.integers(1, 4000))
def test_pieces_cover_every_element_once(length, element_bytes, partition_bytes):
    pieces = cut(Traffic.ALL_REDUCE, "weight", length, element_bytes, partition_bytes)
    covered = [element for piece in pieces for element in range(piece.first, piece.first + piece.length)]
    assert covered == list(range(length))
    assert [(piece.piece, piece.pieces) for piece in pieces] == [(i, len(pieces)) for i in range(len(pieces))]
    # Rounding up to whole elements may exceed the partition by one element.
    assert all(piece.length * element_bytes < partition_bytes + element_bytes for piece in pieces)


def test_wrong_sizes_are_refused():
    with pytest.raises(ValueError, match="pieces is 0"):
        piece_lengths(3, 0)
    with pytest.raises(ValueError, match="length is -1"):
        piece_lengths(-1, 1)
    with pytest.raises(ValueError, match="partition_bytes is 0"):
        count_pieces(3, 0)
    with pytest.raises(ValueError, match="size_bytes is -1"):
        count_pieces(-1)
    with pytest.raises(ValueError, match="piece is 2; it must lie between 0 and 1"):
        MicroOperation(Traffic.ALL_REDUCE, "weight", 2, 2)
