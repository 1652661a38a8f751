"""All options on real ranks: whatever the path, every rank ends with the same sum."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from communication.espresso.decision_tree import gpu_options
from communication.espresso.options import Option, compressions, option_code
from communication.hooks.codecs.dgc import DGC
from communication.hooks.codecs.interface import Codec
from communication.hooks.codecs.names import codec_named
from communication.hooks.codecs.random_k import RandomK
from communication.hooks.encoders import encoders
from communication.hooks.executor import carry_out
from communication.hooks.feedback import ErrorFeedback
from communication.hooks.groups import PlacementGroups
from communication.hooks.residuals import RESIDUAL, Segment
from communication.profiles.codec import WireFormat
from communication.profiles.placement import PlacementShape
from tests.communication.hooks.ranks import run_on_ranks

ELEMENTS = 203
LOSSLESS = ["fp16", "all of random-k"]


def the_codec(name: str) -> Codec:
    if name == "all of random-k":
        return RandomK(WireFormat(kept_share=1.0, value_bits=32, index_bits=32))
    return (
        DGC(WireFormat(kept_share=0.1, value_bits=32, index_bits=32)) if name == "dgc" else codec_named(name)
    )


def gradient_of(rank: int, elements: int, *, whole: bool) -> Tensor:
    generator = torch.Generator().manual_seed(100 * elements + rank)
    if whole:
        return torch.randint(-99, 100, (elements,), generator=generator).float()
    return torch.randn(elements, generator=generator)


def sums_under_options(
    shape: PlacementShape, cases: Sequence[tuple[str, int]], stride: int
) -> dict[tuple[str, int], list[Any]]:
    """On a rank: for each case and option the sum's deviation, that of mass, and the sum's digest."""
    groups = PlacementGroups.open(shape)
    found = {
        (name, elements): [
            _sum_under(option, the_codec(name), elements, groups, whole=name in LOSSLESS)
            for option in gpu_options()[::stride]
        ]
        for name, elements in cases
    }
    groups.close()
    return found


def _sum_under(
    option: Option, codec: Codec, elements: int, groups: PlacementGroups, *, whole: bool
) -> tuple[float, float, str]:
    feedback, ranks = ErrorFeedback(codec), range(groups.shape.workers)
    sums = carry_out(option, 0, gradient_of(dist.get_rank(), elements, whole=whole), feedback, groups, 7)
    deviation = sums - torch.stack([gradient_of(rank, elements, whole=whole) for rank in ranks]).sum(dim=0)
    copies = {each.row for each in encoders(option, 0, elements, groups) if not each.first}
    left = torch.zeros(elements)
    for kept in feedback.kept([[Segment("x", 0, elements)]], copies):
        if kept.kind == RESIDUAL:
            left[kept.start : kept.start + len(kept.values)] += kept.values
    dist.all_reduce(left)
    digest = hashlib.sha256(sums.numpy().tobytes()).hexdigest()
    return float(deviation.abs().max()), float((deviation + left).abs().max()), digest


CASES = [("fp16", ELEMENTS), ("all of random-k", 7), ("ef-signsgd", ELEMENTS)]


@pytest.fixture(scope="module")
def on_four_ranks() -> list[dict[tuple[str, int], list[Any]]]:
    """All options on two servers with two GPUs each."""
    return run_on_ranks(4, sums_under_options, PlacementShape(2, 2), CASES, 1)


def check(case: tuple[str, int], told: Sequence[dict[tuple[str, int], list[Any]]], stride: int = 1) -> None:
    for option, *ranks in zip(gpu_options()[::stride], *(one[case] for one in told), strict=True):
        code = option_code(option)
        assert len({digest for _, _, digest in ranks}) == 1, f"ranks differ under {code}"
        for deviation, mass, _ in ranks:
            if case[0] in LOSSLESS or not compressions(option):
                assert deviation <= (0.0 if case[0] in LOSSLESS else 1e-5), code
            assert mass <= (0.0 if case[0] in LOSSLESS else 1e-4), f"something is lost under {code}"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_of_the_174_options_sums_on_two_servers_with_two_gpus(
    on_four_ranks: list[dict[tuple[str, int], list[Any]]], case: tuple[str, int]
) -> None:
    assert len(on_four_ranks[0][case]) == 174
    check(case, on_four_ranks)


@pytest.mark.parametrize("shape", [PlacementShape(1, 4), PlacementShape(4, 1)], ids=str)
def test_some_options_sum_on_one_server_and_on_servers_with_one_gpu(shape: PlacementShape) -> None:
    cases = [("fp16", ELEMENTS), ("dgc", ELEMENTS)]
    told = run_on_ranks(4, sums_under_options, shape, cases, 3)
    for case in cases:
        check(case, told, 3)
