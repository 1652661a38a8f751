"""Micro-operations and pipelined blocks: worked examples V2 and V4, and invariants."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moe.lina.micro_operations import (
    MicroOperation,
    Traffic,
    capacity_rows,
    count_pieces,
    cut,
    payload_bytes,
    piece_lengths,
)
from moe.lina.pipelining import pipeline_block

MEGABYTE = 1_000_000


def test_v4_pieces():
    assert piece_lengths(10, 4) == (3, 3, 3, 1)
    assert piece_lengths(6, 4) == (2, 2, 2)
    assert [count_pieces(size * MEGABYTE) for size in (154.4, 21, 61, 30, 0)] == [6, 1, 3, 1, 1]


def test_v4_all_to_all_is_cut_along_the_capacity():
    rows = capacity_rows(tokens=6144, experts=16, experts_per_token=2)
    payload = payload_bytes(experts=16, rows=rows, width=512, element_bytes=4)
    assert (rows, payload) == (768, 25_165_824)
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


def test_v2_blocks():
    block = pipeline_block(6, 2, 4)
    assert block.computed == pytest.approx((2, 3.5, 5, 6.5))
    assert block.returned == pytest.approx((7.5, 9, 10.5, 12))
    assert pipeline_block(6, 12, 4).returned == pytest.approx((7.5, 9, 12, 15))
    for arguments, duration in (((6, 2, 1), 14), ((7.5, 1.6, 3), 15), ((6, 6, 2), 12)):
        assert pipeline_block(*arguments).returned[-1] == pytest.approx(duration)


@given(st.floats(0.1, 50), st.floats(0.1, 50), st.integers(2, 9))
def test_block_hides_the_shorter_of_expert_and_all_to_all(all_to_all, expert, pieces):
    duration = pipeline_block(all_to_all, expert, pieces).returned[-1]
    if expert <= all_to_all:
        assert duration == pytest.approx(2 * all_to_all)
    assert duration <= 2 * all_to_all + expert + 1e-9
    assert duration >= max(2 * all_to_all, expert + 2 * all_to_all / pieces) - 1e-9


def test_wrong_sizes_are_refused():
    with pytest.raises(ValueError, match="pieces is 0"):
        piece_lengths(3, 0)
    with pytest.raises(ValueError, match="length is -1"):
        piece_lengths(-1, 1)
    with pytest.raises(ValueError, match="partition_bytes is 0"):
        count_pieces(3, 0)
    with pytest.raises(ValueError, match="size_bytes is -1"):
        count_pieces(-1)
    with pytest.raises(ValueError, match="capacity_factor is 0"):
        capacity_rows(3, 2, 1, 0.0)
    with pytest.raises(ValueError, match="experts is 0"):
        capacity_rows(3, 0, 1)
    with pytest.raises(ValueError, match="durations are -1 and 2"):
        pipeline_block(-1, 2, 2)
    with pytest.raises(ValueError, match="pieces is 0"):
        pipeline_block(1, 2, 0)
    with pytest.raises(ValueError, match="piece is 2; it must lie between 0 and 1"):
        MicroOperation(Traffic.ALL_REDUCE, "weight", 2, 2)
