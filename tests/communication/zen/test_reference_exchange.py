"""Exchanges step by step: vector Z4, exact sums, and the bytes of the formulas."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from communication.zen.densification import Densification
from communication.zen.formats import Format
from communication.zen.hash_bitmap import bitmap_encode
from communication.zen.hash_family import HashFamily, drawn_family
from communication.zen.partitioning import partition_table
from communication.zen.reference_exchange import Exchanged, zen_exchange
from communication.zen.schemes import Exchange, Scheme, received_bytes
from communication.zen.synthetic import SyntheticTable
from tests.communication.zen.examples import ELEMENTS, HandHashes, gradients
from tests.communication.zen.other_exchanges import agsparse_exchange, sparcml_exchange, sparse_ps_exchange


def test_the_example_end_to_end():
    exchanged = zen_exchange(gradients(), HandHashes(), Format.HASH_BITMAP)
    sums = {index + 1: float(exchanged.total[index]) for index in np.flatnonzero(exchanged.total)}
    assert sums == {2: 1.5, 5: 5.0, 9: 5.0, 14: 6.0, 15: 2.0}, "7 and 8 cancel"
    # Servers receive 6, 3 and 3 non-zeros, of which 2, 1 and 1 are each worker's own.
    assert exchanged.push_bytes == (8 * 4, 8 * 2, 8 * 2)
    assert exchanged.push_imbalance == 1.5
    assert exchanged.pull_imbalance == pytest.approx(9 / 7)
    # Bitmaps of a byte each, values 2, 1 and 2.
    assert exchanged.pull_bytes == (1 + 4 + 1 + 8, 1 + 8 + 1 + 8, 1 + 8 + 1 + 4)


def test_bitmaps_of_the_example():
    total = zen_exchange(gradients(), HandHashes()).total
    table = partition_table(ELEMENTS, 3, HandHashes())
    bitmaps = [bitmap_encode(total[members - 1]) for members in table.members]
    assert [bitmap.tobytes().hex() for bitmap in bitmaps] == ["03", "10", "14"]
    values = [[v for v in total[members - 1].tolist() if v] for members in table.members]
    assert values == [[1.5, 5.0], [6.0], [5.0, 2.0]]


whole_numbers = st.sampled_from([0.0, 0.0, 0.0, 1.0, -1.0, 2.0])
pull_formats = st.sampled_from([None, Format.DENSE, Format.COO, Format.HASH_BITMAP])
gradient_sets = st.tuples(st.sampled_from([1, 2, 4, 8]), st.integers(0, 40)).flatmap(
    lambda shape: arrays(np.float32, shape, elements=whole_numbers)
)


@given(gradient_sets, pull_formats)
def test_every_exchange_gives_the_exact_sum(drawn_gradients, form):
    all_of_them = list(drawn_gradients)
    workers = len(all_of_them)
    expected = np.sum(all_of_them, axis=0)
    family = drawn_family("exact")
    for found in (
        zen_exchange(all_of_them, family, form),
        agsparse_exchange(all_of_them),
        sparcml_exchange(all_of_them),
        sparse_ps_exchange(all_of_them),
    ):
        assert found.total.tolist() == expected.tolist()
        assert len(found.received_bytes) == workers
        if workers == 1:
            assert found.received_bytes == (0,)


@pytest.mark.parametrize("seed", range(5))
def test_random_values_agree_to_rounding(seed):
    table = SyntheticTable(400, 8, 60)
    random = [table.gradient(worker, seed=seed) for worker in range(4)]
    expected = np.sum(np.array(random, np.float64), axis=0)
    exchanged = zen_exchange(random, drawn_family(f"{seed}"))
    assert np.abs(exchanged.total - expected).max() <= 1e-6 * np.abs(expected).max()


def test_nan_and_infinity_arrive():
    one, other = np.zeros(9, np.float32), np.zeros(9, np.float32)
    one[3], other[3], other[5] = np.inf, -np.inf, np.nan
    with np.errstate(invalid="ignore"):
        total = zen_exchange([one, other], HashFamily((1,)), Format.HASH_BITMAP).total
    assert np.flatnonzero(np.isnan(total)).tolist() == [3, 5]


def test_all_zeros_and_no_elements():
    for elements in (0, 3, 50):
        nothing = [np.zeros(elements, np.float32)] * 4
        exchanged = zen_exchange(nothing, drawn_family("none"), Format.HASH_BITMAP)
        assert not exchanged.total.any()
        assert exchanged.push_bytes == (0,) * 4
        assert sum(exchanged.pull_bytes) <= 3 * (elements / 8 + 4)


@pytest.fixture(scope="module")
def drawn() -> tuple[SyntheticTable, list[np.ndarray], Exchange]:
    table = SyntheticTable(rows=30_000, columns=4, touched=900)
    law = table.measured_densification((2, 4, 8), seed=2)
    all_of_them = [table.gradient(worker, seed=2, whole=True) for worker in range(8)]
    return table, [np.abs(one) for one in all_of_them], Exchange(8, 4.0 * table.elements, law)


def test_received_bytes_of_zen_follow_the_formula(drawn):
    table, all_of_them, exchange = drawn
    exchanged = zen_exchange(all_of_them, drawn_family("bytes"), Format.HASH_BITMAP)
    pushed = sum(exchanged.push_bytes) / 8
    assert pushed == pytest.approx(7 / 8 * 8 * 4 * table.touched, rel=0.02), "8 |I| minus the local part"
    nonzeros = int(np.count_nonzero(exchanged.total))
    for each in exchanged.pull_bytes:
        own = table.elements / 8 + 4 * nonzeros
        assert abs(each - 7 / 8 * own) < 0.02 * own
    assert np.mean(exchanged.received_bytes) == pytest.approx(received_bytes(Scheme.ZEN, exchange), rel=0.02)
    assert max(exchanged.received_bytes) < 1.1 * np.mean(exchanged.received_bytes)
    assert exchanged.push_imbalance < 1.1 * 1.05
    assert exchanged.pull_imbalance < 1.1


def test_received_bytes_of_other_schemes_follow_the_formulas(drawn):
    _, all_of_them, exchange = drawn
    exchanged = agsparse_exchange(all_of_them)
    assert max(exchanged.received_bytes) == pytest.approx(received_bytes(Scheme.AGSPARSE, exchange))
    exchanged = sparcml_exchange(all_of_them)
    assert np.mean(exchanged.received_bytes) == pytest.approx(
        received_bytes(Scheme.SPARCML, exchange), rel=0.1
    )


def test_a_sparse_parameter_server_has_one_full_server(drawn):
    table, all_of_them, exchange = drawn
    found = sparse_ps_exchange(all_of_them)
    assert found.push_imbalance > 4.0
    assert found.pull_imbalance > 2.0
    assert max(found.push_bytes) > 5 * np.mean(found.push_bytes[1:])
    zen = zen_exchange(all_of_them, drawn_family("bytes"))
    assert max(zen.push_bytes) < max(found.push_bytes) / 3


def test_pairs_need_a_power_of_two():
    with pytest.raises(ValueError, match="among 3 workers"):
        sparcml_exchange(gradients())


def test_the_smallest_pull_format_is_taken(drawn):
    _, all_of_them, _ = drawn
    family = drawn_family("bytes")
    by_format: dict[Format, Exchanged] = {
        form: zen_exchange(all_of_them, family, form)
        for form in (Format.DENSE, Format.COO, Format.HASH_BITMAP)
    }
    chosen = zen_exchange(all_of_them, family)
    assert sum(chosen.pull_bytes) == min(sum(each.pull_bytes) for each in by_format.values())


def test_a_law_of_no_overlap_is_an_upper_bound(drawn):
    _, _, exchange = drawn
    law = exchange.densification
    apart = Densification(law.density, 1.0)
    assert all(law.after(count) <= apart.after(count) for count in range(1, 40))
