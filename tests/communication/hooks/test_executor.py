"""All options on real ranks: on every path, all ranks end with the same sum."""

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
from communication.hooks.executor import Carrying
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
    """On a rank: return for each case and some options the deviation of the sum, that of the mass, and the
    sum's digest. Each case begins with another option."""
    groups = PlacementGroups.open(shape)
    results = {
        (name, elements): [
            _sum_under(option, the_codec(name), elements, groups, whole=name in LOSSLESS)
            for option in gpu_options()[number::stride]
        ]
        for number, (name, elements) in enumerate(cases)
    }
    groups.close()
    return results


def _sum_under(
    option: Option, codec: Codec, elements: int, groups: PlacementGroups, *, whole: bool
) -> tuple[float, float, str]:
    feedback, ranks = ErrorFeedback(codec), range(groups.shape.workers)
    own = gradient_of(dist.get_rank(), elements, whole=whole)
    exchange = Carrying(option, 0, own, feedback, groups, 7)
    for work in exchange.works():
        work.wait()
    sums = exchange.sums
    deviation = sums - torch.stack([gradient_of(rank, elements, whole=whole) for rank in ranks]).sum(dim=0)
    copies = {encoder.row for encoder in encoders(option, 0, elements, groups) if not encoder.first}
    left = torch.zeros(elements)
    for piece in feedback.kept([[Segment("x", 0, elements)]], copies):
        if piece.kind == RESIDUAL:
            left[piece.start : piece.start + len(piece.values)] += piece.values
    dist.all_reduce(left)
    digest = hashlib.sha256(sums.numpy().tobytes()).hexdigest()
    return float(deviation.abs().max()), float((deviation + left).abs().max()), digest


CASES = [("fp16", ELEMENTS), ("all of random-k", 7), ("ef-signsgd", ELEMENTS)]
LOSSY = [("fp16", ELEMENTS), ("dgc", ELEMENTS)]


@pytest.mark.parametrize(
    ("shape", "cases", "stride"),
    [
        # Three codecs in turn: each option is tested with one of them.
        (PlacementShape(2, 2), CASES, 3),
        pytest.param(PlacementShape(2, 2), CASES, 1, marks=pytest.mark.slow),
        (PlacementShape(1, 4), LOSSY, 7),
        (PlacementShape(4, 1), LOSSY, 7),
    ],
    ids=["each option on two servers", "all cases", "some on one server", "some on servers with one GPU"],
)
def test_every_option_sums_gradients_on_all_ranks(
    shape: PlacementShape, cases: list[tuple[str, int]], stride: int
) -> None:
    assert len(gpu_options()) == 174
    results = run_on_ranks(4, sums_under_options, shape, cases, stride)
    for number, case in enumerate(cases):
        for option, *ranks in zip(
            gpu_options()[number::stride], *(result[case] for result in results), strict=True
        ):
            code = option_code(option)
            assert len({digest for _, _, digest in ranks}) == 1, f"ranks differ under {code}"
            for deviation, mass, _ in ranks:
                if case[0] in LOSSLESS or not compressions(option):
                    assert deviation <= (0.0 if case[0] in LOSSLESS else 1e-5), code
                assert mass <= (0.0 if case[0] in LOSSLESS else 1e-4), f"something is lost under {code}"
