"""Profiles: what they refuse, and how codecs and links convert sizes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from communication.collectives import all_gather_bytes, all_reduce_bytes, reduce_scatter_bytes, tree_bytes
from communication.plan import Prediction, content_digest
from communication.profiles.codec import CodecProfile, Device, WireFormat
from communication.profiles.link import LinkProfile, LinkRate
from communication.profiles.model import ModelProfile
from communication.profiles.placement import PlacementShape


def model(elements=(4, 0, 2), gaps=(0.1, 0.2, 0.3), names=("a", "b", "c"), **others) -> ModelProfile:
    return ModelProfile("small", tuple(names), np.array(elements), np.array(gaps), **others)


def test_a_model_has_sizes_and_times() -> None:
    profile = model(other_seconds=0.4)
    assert profile.sizes_bytes.tolist() == [16, 0, 8]
    assert (profile.parameters, len(profile)) == (6, 3)
    assert profile.backward_seconds == pytest.approx(0.6)
    assert profile.compute_seconds == pytest.approx(1.0)
    assert model(bytes_per_element=2).sizes_bytes.tolist() == [8, 0, 4]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"elements": (4, -1, 2)}, "not be negative; number 1 is -1"),
        ({"elements": (4.5, 1, 2)}, "whole numbers"),
        ({"elements": ((4, 1, 2),)}, "2 dimensions"),
        ({"elements": (4, 1)}, "3 names, 2 sizes and 3 gaps"),
        ({"gaps": (0.1, float("nan"), 0.3)}, "finite and not negative; number 1 is nan"),
        ({"gaps": (0.1, -0.2, 0.3)}, "number 1 is -0.2"),
        ({"gaps": (0.1, float("inf"), 0.3)}, "number 1 is inf"),
        ({"names": ("a", "b", "a")}, "the name 'a'"),
        ({"elements": (), "gaps": (), "names": ()}, "at least one tensor"),
        ({"elements": (1 << 47, 1 << 47, 1)}, "at most 65536 tensors"),
        ({"other_seconds": -1.0}, "other_seconds is -1.0"),
        ({"bytes_per_element": 3}, "bytes_per_element is 3"),
    ],
)
def test_an_inconsistent_model_is_refused(wrong, says) -> None:
    with pytest.raises(ValueError, match=says):
        model(**wrong)


def test_a_models_number_of_tensors_is_bounded() -> None:
    many = (1 << 16) + 1
    with pytest.raises(ValueError, match="at most 65536 tensors"):
        ModelProfile.unnamed("large", np.ones(many, np.int64), np.ones(many))


def test_profiles_are_immutable_and_digests_show_every_difference() -> None:
    gaps = np.array([0.1, 0.2, 0.3])
    profile = model(gaps=gaps)
    gaps[0] = 9.0
    assert profile.gap_seconds[0] == 0.1
    with pytest.raises(ValueError, match="read-only"):
        profile.elements[0] = 7
    assert profile.digest == model().digest
    others = [
        model(elements=(4, 0, 3)), model(gaps=(0.1, 0.2, 0.30001)), model(names=("a", "b", "d")),
        model(other_seconds=0.1), model(bytes_per_element=2), replace(profile, name="other"),
    ]  # fmt: skip
    assert len({other.digest for other in [profile, *others]}) == 7


def test_gaps_scale_with_device_speed_and_sizes_with_the_model() -> None:
    faster = model().with_times(0.06, 0.5)
    assert faster.gap_seconds == pytest.approx([0.01, 0.02, 0.03])
    assert faster.other_seconds == 0.5
    assert model(elements=(65, 0, 1)).with_elements_divided(32).elements.tolist() == [3, 0, 1]
    with pytest.raises(ValueError, match="no proportions"):
        model(gaps=(0, 0, 0)).with_times(0.06, 0.5)
    with pytest.raises(ValueError, match="at least 1"):
        model().with_elements_divided(0)


def test_a_placement_has_a_gpu() -> None:
    assert PlacementShape(8, 4).workers == 32
    assert PlacementShape(2, 1).spread
    assert not PlacementShape(1, 8).spread
    for wrong in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match="at least one GPU"):
            PlacementShape(*wrong)


def test_a_link_profile_leaves_out_the_share_used_by_others() -> None:
    link = LinkProfile(LinkRate(1e-4, 1e9), LinkRate(1e-5, 1e10), share=0.5)
    assert link.granted.seconds(5e8) == pytest.approx(1.0001)
    assert link.rate(spread=True) == LinkRate(1e-4, 5e8)
    assert link.rate(spread=False).seconds(1e10) == pytest.approx(1.00001)
    for share in (0.0, 1.1, float("nan")):
        with pytest.raises(ValueError, match="share"):
            replace(link, share=share)
    for rate in ((-1.0, 1.0), (0.0, 0.0), (0.0, float("inf")), (float("nan"), 1.0)):
        with pytest.raises(ValueError, match="latency_seconds|bytes_per_second"):
            LinkRate(*rate)


def test_a_wire_format_counts_bytes() -> None:
    sparse = WireFormat(0.01, 32, 32)
    assert [sparse.bytes(n) for n in (0, 1, 99, 100, 250, 1000)] == [0, 8, 8, 8, 16, 80]
    assert sparse.ratio() == pytest.approx(0.02)
    signs = WireFormat(value_bits=1, fixed_bytes=4)
    assert [signs.bytes(n) for n in (0, 1, 8, 9)] == [0, 5, 5, 6]
    assert signs.ratio() == pytest.approx(1 / 32)
    assert WireFormat().bytes(7) == 28
    assert WireFormat(value_bits=16).ratio(bytes_per_element=2) == 1.0
    for wrong in ({"kept_share": 0.0}, {"kept_share": 1.5}, {"value_bits": 0}, {"index_bits": -1}):
        with pytest.raises(ValueError, match="share|bit"):
            WireFormat(**wrong)


def codec(elements=(100, 200, 400), encode=(1.0, 2.0, 6.0), decode=(0.5, 0.5, 0.5)) -> CodecProfile:
    return CodecProfile("x", Device.GPU, WireFormat(), np.array(elements), np.array(encode), np.array(decode))


def test_times_of_a_codec_are_interpolated() -> None:
    sizes = np.array([0, 1, 100, 150, 300, 400, 500])
    assert codec().seconds_to_encode(sizes).tolist() == [0.0, 1.0, 1.0, 1.5, 4.0, 6.0, 8.0]
    assert codec().seconds_to_decode(sizes).tolist() == [0.0] + [0.5] * 6
    # A table that falls at its end is not extrapolated downwards.
    assert codec(encode=(1.0, 3.0, 2.0)).seconds_to_encode([4000]).tolist() == [2.0]


def test_one_size_alone_is_a_threshold() -> None:
    codec = CodecProfile.with_threshold("x", Device.GPU, WireFormat(), 1.0, 0.5, 1000)
    assert codec.seconds_to_encode([1, 1000, 2500]).tolist() == [1.0, 1.0, 2.5]
    rated = CodecProfile.with_rate("x", Device.CPU, WireFormat(), 10.0, 20.0)
    assert rated.seconds_to_encode([0, 5, 100]).tolist() == pytest.approx([0.0, 0.5, 10.0])
    assert rated.seconds_to_decode([100]).tolist() == pytest.approx([5.0])


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"elements": (), "encode": (), "decode": ()}, "has no measured size"),
        ({"elements": (100, 200)}, "there are 2 sizes, 3 encode times"),
        ({"elements": (0, 200, 400)}, "must ascend from above 0"),
        ({"elements": (100, 100, 400)}, "ascend"),
        ({"encode": (1.0, -2.0, 6.0)}, "number 1 is -2.0"),
        ({"decode": (1.0, 2.0, float("inf"))}, "number 2 is inf"),
    ],
)
def test_an_inconsistent_codec_is_refused(wrong, says) -> None:
    with pytest.raises(ValueError, match=says):
        codec(**wrong)


def test_received_bytes_of_collectives_follow_the_formulas() -> None:
    assert all_reduce_bytes(8, 64.0) == 112.0
    assert reduce_scatter_bytes(8, 64.0) == 56.0
    assert all_gather_bytes(8, 64.0) == 448.0
    assert tree_bytes(8, 64.0) == 192.0
    assert tree_bytes(5, 1.0) == 3.0
    alone = [one(1, 64.0) for one in (all_reduce_bytes, reduce_scatter_bytes, all_gather_bytes, tree_bytes)]
    assert alone == [0.0] * 4


def test_a_plans_digest_is_that_of_its_content() -> None:
    assert content_digest({"a": 1, "b": [2.5]}) == content_digest({"b": [2.5], "a": 1, "digest": "any"})
    assert content_digest({"a": 1}) != content_digest({"a": 2})
    with pytest.raises(ValueError, match="JSON"):
        content_digest({"a": float("nan")})


def test_a_prediction_is_finite() -> None:
    with pytest.raises(ValueError, match="host_seconds"):
        Prediction(1.0, 2.0, 3.0, 4.0, -1.0)
    with pytest.raises(ValueError, match="iteration_seconds"):
        Prediction(float("inf"), 2.0, 3.0)
