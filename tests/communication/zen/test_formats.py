"""Formats on the wire: sizes of 3.1, the choice between them, hash bitmaps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from communication.zen.formats import Format, block_density, relative_size, smallest_format
from communication.zen.hash_bitmap import (
    bitmap_bytes,
    bitmap_decode,
    bitmap_encode,
)
from communication.zen.hash_family import drawn_family
from communication.zen.partitioning import partition_table

MEMBERS = np.array([2, 5, 7, 10, 13], np.int32)


def test_the_example_of_the_paper():
    bitmap = bitmap_encode(np.array([0.0, 3.0, -1.0, 0.0, 0.0], np.float32))
    assert np.unpackbits(bitmap, bitorder="little")[:5].tolist() == [0, 1, 1, 0, 0]
    assert bitmap_decode(bitmap, MEMBERS).tolist() == [5, 7]


@pytest.mark.parametrize(
    ("form", "density", "size"),
    [
        (Format.HASH_BITMAP, 0.95, 0.98125), (Format.COO, 0.95, 1.90), (Format.BITMAP, 0.95, 1.45),
        (Format.HASH_BITMAP, 0.5, 0.53125), (Format.COO, 0.5, 1.0), (Format.BITMAP, 0.5, 1.0),
        (Format.DENSE, 0.5, 1.0),
    ],
)  # fmt: skip
def test_sizes_with_sixteen_servers(form, density, size):
    assert relative_size(form, density, servers=16) == pytest.approx(size)


def test_sizes_given_in_the_papers_text():
    # DeepFM's embedding: 214 million elements.
    elements = 214_000_000
    table_bytes = 4 * elements
    assert table_bytes == 856e6
    assert relative_size(Format.HASH_BITMAP, 0.0) * table_bytes == 26.75e6
    assert relative_size(Format.BITMAP, 0.0, servers=16) * table_bytes == 428e6
    # BERT after 128 GPUs: dense over sparse, without and with indices.
    assert 1 / (relative_size(Format.HASH_BITMAP, 0.408) - 1 / 32) == pytest.approx(2.45, abs=0.005)
    assert 1 / relative_size(Format.COO, 0.408) == pytest.approx(1.23, abs=0.005)


@given(st.integers(0, 5000), st.integers(1, 40))
def test_all_bitmaps_together_have_a_bit_for_each_element(elements, servers):
    table = partition_table(elements, servers, drawn_family("theorem 3.3"))
    bits = sum(len(members) for members in table.members)
    assert bits == elements
    total = sum(bitmap_bytes(len(members)) for members in table.members)
    assert elements / 8 <= total < elements / 8 + servers


@pytest.mark.parametrize(
    ("density", "expected"),
    [(0.0, Format.COO), (1 / 32, Format.COO), (0.032, Format.HASH_BITMAP), (0.96, Format.HASH_BITMAP),
     (31 / 32, Format.DENSE), (1.0, Format.DENSE)],
)  # fmt: skip
def test_the_smallest_format(density, expected):
    assert smallest_format(density) is expected


@given(st.floats(0.0, 1.0), st.integers(1, 512))
def test_no_format_is_smaller_than_the_chosen_one(density, width):
    chosen = relative_size(smallest_format(density, width), density, width=width)
    for form in (Format.DENSE, Format.COO, Format.BITMAP, Format.HASH_BITMAP):
        assert chosen <= relative_size(form, density, servers=2, width=width) + 1e-15


@pytest.mark.parametrize(
    ("density", "width", "expected"),
    # 256 elements, 16 rows of 16, and rows longer than a block.
    [(0.01, 1, 1 - 0.99**256), (0.01, 16, 1 - 0.99**16), (0.01, 256, 0.01), (0.01, 512, 0.01)],
)
def test_blocks_with_a_nonzero(density, width, expected):
    assert block_density(density, width) == pytest.approx(expected)
    assert relative_size(Format.BLOCKS, density, width=width) == pytest.approx(expected)


@given(st.floats(0.0, 1.0), st.integers(1, 512))
def test_a_block_is_no_emptier_than_its_units(density, width):
    assert density - 1e-12 <= block_density(density, width) <= 1.0
