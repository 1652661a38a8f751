"""Codecs on real tensors: payloads have the library's sizes and decode correctly."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from communication.hooks.codecs.bits import pack, unpack
from communication.hooks.codecs.dgc import DGC, EXACT_BELOW
from communication.hooks.codecs.ef_signsgd import SignSGD
from communication.hooks.codecs.half_precision import HalfPrecision
from communication.hooks.codecs.interface import Codec
from communication.hooks.codecs.names import CODECS, codec_named
from communication.hooks.codecs.onebit import OneBit
from communication.hooks.codecs.random_k import RandomK
from communication.library.codecs import WIRE_FORMATS
from communication.profiles.codec import WireFormat

SIZES = [0, 1, 3, 8, 17, 100, 1000, 20_000]
EVERYTHING = WireFormat(kept_share=1.0, value_bits=32, index_bits=32)


def normal(elements: int, seed: int = 0) -> Tensor:
    return torch.randn(elements, generator=torch.Generator().manual_seed(seed))


def decoded(codec: Codec, values: Tensor, seed: int = 5) -> Tensor:
    values_back = torch.full_like(values, torch.nan)
    codec.decode(codec.encode(values, seed), values_back)
    return values_back


def test_every_codec_of_the_library_is_implemented() -> None:
    assert set(CODECS) == set(WIRE_FORMATS)
    with pytest.raises(ValueError, match="no codec 'zip'"):
        codec_named("zip")


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("elements", SIZES)
def test_payloads_have_the_sizes_that_planners_assume(name: str, elements: int) -> None:
    codec, values = codec_named(name), normal(elements)
    original = values.clone()
    payload = codec.encode(values, 3)
    assert payload.dtype == torch.uint8
    assert len(payload) == codec.payload_bytes(elements) == WIRE_FORMATS[name].bytes(elements)
    assert torch.equal(values, original)
    assert torch.equal(codec.encode(values, 3), payload)


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("elements", SIZES)
def test_adding_a_payload_equals_decoding_it_at_any_alignment(name: str, elements: int) -> None:
    codec, values = codec_named(name), normal(elements)
    payload = codec.encode(values, 3)
    elsewhere = torch.cat([torch.zeros(3, dtype=torch.uint8), payload])[3:]
    sums = torch.full_like(values, 2.0)
    codec.add(elsewhere, sums, -0.5)
    torch.testing.assert_close(sums, 2.0 - 0.5 * decoded(codec, values, 3))


def test_packed_bits_unpack_in_order() -> None:
    for count in (1, 7, 8, 9, 64, 100):
        bits = normal(count) > 0
        assert torch.equal(unpack(pack(bits), count), bits)
        assert len(pack(bits)) == -(-count // 8)


def test_the_vectors_of_the_specification() -> None:
    """E7."""
    values = torch.tensor([1.0, -2.0, 3.0, -4.0])
    assert decoded(SignSGD(), values).tolist() == [2.5, -2.5, 2.5, -2.5]
    assert decoded(OneBit(), values).tolist() == [2.0, -3.0, 2.0, -3.0]
    assert decoded(SignSGD(), torch.tensor([0.0, 4.0, -2.0])).tolist() == [2.0, 2.0, -2.0]
    assert decoded(OneBit(), torch.tensor([0.0, 4.0])).tolist() == [2.0, 2.0]
    assert decoded(OneBit(), torch.tensor([-1.0, -3.0])).tolist() == [-2.0, -2.0]


def test_half_precision_keeps_integers_and_finiteness() -> None:
    values = torch.arange(-1024.0, 1024.0)
    assert torch.equal(decoded(HalfPrecision(), values), values)
    large = decoded(HalfPrecision(), torch.tensor([1e9, -1e9, torch.inf, torch.nan]))
    assert large[:3].tolist() == [65504.0, -65504.0, torch.inf]
    assert large[3].isnan()


@pytest.mark.parametrize("kind", [RandomK, DGC])
@pytest.mark.parametrize("elements", SIZES[1:])
def test_sparse_codecs_send_exact_values_and_zeros_elsewhere(
    kind: type[RandomK | DGC], elements: int
) -> None:
    values = normal(elements)
    values_back = decoded(kind(), values)
    sent = values_back != 0
    assert torch.equal(values_back[sent], values[sent])
    assert int(sent.sum()) == kind().wire.kept(elements)
    assert torch.equal(decoded(kind(EVERYTHING), values), values)
    assert kind(EVERYTHING).exact
    assert not kind().exact


def test_random_indices_follow_the_seed_and_are_uniform() -> None:
    codec = RandomK(WireFormat(kept_share=0.1, value_bits=32, index_bits=32))
    times = torch.zeros(203)
    for seed in range(4000):
        chosen = codec.select(times, 20, seed)
        assert torch.equal(chosen, codec.select(normal(203), 20, seed))
        assert len(chosen.unique()) == 20
        times[chosen] += 1
    expected = 4000 * 20 / 203
    assert times.min() > 0.75 * expected
    assert times.max() < 1.3 * expected
    assert not torch.equal(codec.select(times, 20, 1), codec.select(times, 20, 2))


@pytest.mark.parametrize("elements", [EXACT_BELOW - 1, EXACT_BELOW, 200_000, (1 << 20) + 5])
def test_dgc_sends_the_largest_magnitudes(elements: int) -> None:
    values = normal(elements)
    values_back = decoded(DGC(), values)
    kept_count = DGC().wire.kept(elements)
    sent = int((values_back != 0).sum())
    assert sent == kept_count if elements < EXACT_BELOW else 0.7 * kept_count <= sent <= kept_count
    largest = values.abs().topk(sent).values
    assert values_back.abs().sum() >= (1.0 if elements < EXACT_BELOW else 0.97) * largest.sum()


@pytest.mark.parametrize("values", [torch.ones(40_000), torch.zeros(40_000)])
def test_dgc_sends_its_share_if_all_magnitudes_are_equal(values: Tensor) -> None:
    sent = decoded(DGC(), values)
    assert int((sent != 0).sum()) <= 400
    assert torch.equal(sent[sent != 0], values[sent != 0])


def test_dgc_sends_all_of_a_few_large_values_once() -> None:
    values = torch.zeros(50_000)
    values[[7, 49_999]] = torch.tensor([3.0, -5.0])
    assert torch.equal(decoded(DGC(), values), values)


def test_forgetting_resets_only_the_sent_elements() -> None:
    codec, values = DGC(), normal(30_000)
    values[0] = 1e-6
    payload = codec.encode(values, 0)
    row = torch.ones(30_000)
    codec.forget(payload, row)
    sent = decoded(codec, values, 0) != 0
    assert torch.equal(row, torch.where(sent, 0.0, 1.0))


def test_a_payload_that_is_not_finite_resets_nothing() -> None:
    """Its padding stands for no element."""
    codec, values, row = DGC(), torch.zeros(30_000), torch.ones(30_000)
    values[7] = torch.nan
    codec.forget(codec.encode(values, 0), row)
    assert torch.equal(row, torch.ones(30_000))
