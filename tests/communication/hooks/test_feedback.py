"""Error feedback: no value is lost between iterations, nor between numbers of ranks and plans."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from communication.hooks.codecs.dgc import DGC
from communication.hooks.codecs.interface import Codec
from communication.hooks.codecs.names import CODECS, codec_named
from communication.hooks.codecs.random_k import RandomK
from communication.hooks.feedback import ErrorFeedback, seed_of
from communication.hooks.residuals import (
    RESIDUAL,
    RESIDUAL_COPY,
    VELOCITY,
    VELOCITY_COPY,
    Kept,
    Row,
    Segment,
    from_state,
    recut,
    to_state,
    told_by_parameter,
)
from communication.profiles.codec import WireFormat

LAYOUT = [
    [Segment("a", 0, 70), Segment("b", 70, 0), Segment("c", 70, 30)],
    [Segment("d", 0, 50)],
]
TENTH = WireFormat(kept_share=0.1, value_bits=32, index_bits=32)
LOSSY = [name for name in CODECS if name != "none"]


def normal(elements: int, seed: int) -> Tensor:
    return torch.randn(elements, generator=torch.Generator().manual_seed(seed))


def decoded(codec: Codec, payload: Tensor, pieces: list[range]) -> Tensor:
    """Return the sums decoded from a payload of these pieces, which begin at 0."""
    sums = torch.zeros(pieces[-1].stop)
    begin = 0
    for piece in pieces:
        end = begin + codec.payload_bytes(len(piece))
        codec.add(payload[begin:end], sums[piece.start : piece.stop])
        begin = end
    assert begin == len(payload)
    return sums


@pytest.mark.parametrize("name", LOSSY)
@pytest.mark.parametrize(
    "pieces", [[range(101)], [range(40), range(40, 80), range(80, 101), range(101, 101)]]
)
def test_sent_values_and_residuals_add_up_to_the_gradients(name: str, pieces: list[range]) -> None:
    codec, row = codec_named(name), Row(0, 0, 0, 101)
    feedback = ErrorFeedback(codec)
    sent, total = torch.zeros(101, dtype=torch.float64), torch.zeros(101, dtype=torch.float64)
    for step in range(50):
        values = normal(101, step)
        total += values
        sent += decoded(codec, feedback.encode(row, values.clone(), pieces, seed_of(step)), pieces)
    (residual,) = feedback.kept([[Segment("whole", 0, 101)]])
    torch.testing.assert_close(sent + residual.values, total, rtol=0, atol=2e-4)
    assert residual.values.abs().sum() > 0


def test_a_lossless_codec_keeps_no_residuals() -> None:
    feedback = ErrorFeedback(codec_named("none"))
    feedback.encode(Row(0, 0, 0, 9), normal(9, 0), [range(9)], 1)
    assert feedback.kept(LAYOUT) == []
    residual = Kept(RESIDUAL, "a", 0, 3, torch.ones(4))
    velocity = Kept(VELOCITY, "a", 0, 3, torch.ones(4))
    assert feedback.take([residual, velocity], [Row(0, 0, 0, 100)], LAYOUT, "cpu") == [residual]


def test_residuals_of_the_specification() -> None:
    """Example E7 of the specification."""
    values = torch.tensor([1.0, -2.0, 3.0, -4.0])
    for name, expected in {"ef-signsgd": [-1.5, 0.5, 0.5, -1.5], "onebit": [-1.0, 1.0, 1.0, -1.0]}.items():
        feedback = ErrorFeedback(codec_named(name))
        feedback.encode(Row(0, 0, 0, 4), values.clone(), [range(4)], 0)
        assert feedback.kept([[Segment("x", 0, 4)]])[0].values.tolist() == expected


def test_momentum_is_corrected_and_reset_where_it_was_sent() -> None:
    """Each step equals the published rule: u = 0.9 u + g, v = v + u; both become 0 where v was sent."""
    codec = DGC(TENTH)
    feedback, row = ErrorFeedback(codec, momentum=0.9), Row(0, 0, 0, 100)
    u, v = torch.zeros(100), torch.zeros(100)
    for step in range(20):
        values = normal(100, step)
        u = 0.9 * u + values
        v = v + u
        sent = decoded(codec, feedback.encode(row, values, [range(100)], step), [range(100)])
        largest = torch.zeros(100, dtype=torch.bool).index_fill_(0, v.abs().topk(10).indices, True)
        torch.testing.assert_close(sent, torch.where(largest, v, 0.0))
        u, v = torch.where(largest, 0.0, u), torch.where(largest, 0.0, v)
    residual, velocity = feedback.kept([[Segment("x", 0, 100)]])
    torch.testing.assert_close(residual.values, v)
    torch.testing.assert_close(velocity.values, u)


def test_momentum_is_refused_for_unsuitable_codecs() -> None:
    for momentum in (-0.1, 1.0, float("nan")):
        with pytest.raises(ValueError, match="below 1"):
            ErrorFeedback(DGC(), momentum)
    with pytest.raises(ValueError, match="sends something of every element"):
        ErrorFeedback(codec_named("onebit"), 0.9)


def test_encoding_again_between_exchanges_adds_no_momentum() -> None:
    feedback, row = ErrorFeedback(DGC(TENTH), momentum=0.9), Row(0, 1, 0, 100)
    feedback.encode(row, normal(100, 0), [range(100)], 0)
    assert {residual.kind for residual in feedback.kept(LAYOUT)} == {RESIDUAL}


def test_copies_are_resumed_only_by_their_own_rank() -> None:
    feedback, row = ErrorFeedback(DGC(TENTH), momentum=0.9), Row(0, 0, 0, 100)
    feedback.encode(row, normal(100, 0), [range(100)], 0)
    rows = {
        residual.parameter: residual.values.clone()
        for residual in feedback.kept(LAYOUT)
        if residual.kind == RESIDUAL
    }
    copied = from_state(to_state(feedback.kept(LAYOUT, {row})))
    assert {residual.kind for residual in copied} == {RESIDUAL_COPY, VELOCITY_COPY}
    other = ErrorFeedback(DGC(TENTH), momentum=0.9)
    assert other.take(copied, [row], LAYOUT, "cpu") == []
    assert other.kept(LAYOUT) == []
    assert other.resume(copied, [row], LAYOUT, "cpu") == []
    resumed = {
        residual.parameter: residual.values for residual in other.kept(LAYOUT) if residual.kind == RESIDUAL
    }
    assert all(torch.equal(resumed[name], values) for name, values in rows.items())


@pytest.mark.parametrize(("name", "momentum"), [(name, 0.0) for name in LOSSY] + [("dgc", 0.9)])
@pytest.mark.parametrize("elements", [100, 20_000])
def test_nonfinite_values_pass_through_and_are_never_kept(name: str, momentum: float, elements: int) -> None:
    feedback, row = ErrorFeedback(codec_named(name), momentum), Row(0, 0, 0, elements)
    summed = [range(elements)]
    for bad in (torch.inf, -torch.inf, torch.nan):
        values = normal(elements, 1)
        values[31] = bad
        received = decoded(feedback.codec, feedback.encode(row, values, summed, 1), summed)
        assert not (received[31:32] if name == "fp16" else received).isfinite().any()
        assert all(
            residual.values.isfinite().all() for residual in feedback.kept([[Segment("x", 0, elements)]])
        )
    received = decoded(feedback.codec, feedback.encode(row, normal(elements, 2), summed, 2), summed)
    assert received.isfinite().all()


def test_random_choices_differ_by_piece_and_agree_on_all_ranks() -> None:
    pieces = [range(50), range(50, 100)]
    chosen = []
    for values in (normal(100, 1), normal(100, 2)):
        feedback = ErrorFeedback(RandomK(TENTH))
        sums = decoded(feedback.codec, feedback.encode(Row(0, 0, 0, 100), values, pieces, 9), pieces)
        chosen.append((sums != 0).nonzero().view(-1).tolist())
    assert chosen[0] == chosen[1]
    assert [index - 50 for index in chosen[0][5:]] != chosen[0][:5]


# -- with other numbers of ranks


def summed(residuals: list[Kept]) -> dict[str, Tensor]:
    """Return the residuals of each parameter, summed over all points and ranks."""
    sums = {segment.parameter: torch.zeros(segment.count) for gradient in LAYOUT for segment in gradient}
    for residual in residuals:
        sums[residual.parameter][residual.start : residual.start + len(residual.values)] += residual.values
    return sums


def rows_of(ranks: int, rank: int, points: int = 1) -> list[Row]:
    """Return this rank's rows when every gradient is cut evenly over the ranks."""
    rows = []
    for gradient, segments in enumerate(LAYOUT):
        elements = segments[-1].offset + segments[-1].count
        width = -(-elements // ranks)
        low, high = min(elements, rank * width), min(elements, (rank + 1) * width)
        rows += [Row(gradient, point, low, high - low) for point in range(points)]
    return rows


@pytest.mark.parametrize(("before", "after"), [(1, 1), (4, 4), (4, 2), (2, 4), (3, 5), (8, 1)])
@pytest.mark.parametrize("points_after", [1, 3])
def test_residuals_keep_their_sum_for_any_ranks_and_points(
    before: int, after: int, points_after: int
) -> None:
    residuals = []
    for rank in range(before):
        rows = {
            row: normal(row.count, 100 * rank + 10 * row.gradient + row.point)
            for row in rows_of(before, rank, 2)
        }
        state = to_state(told_by_parameter(RESIDUAL, rows, LAYOUT))
        residuals.append(from_state({name: values.clone() for name, values in state.items()}))
    expected = summed([residual for of_rank in residuals for residual in of_rank])
    recut_residuals = []
    for rank in range(after):
        previous = [residual for of_rank in residuals[rank::after] for residual in of_rank]
        places = rows_of(after, rank, points_after)
        filled, rest = recut(previous, places, LAYOUT)
        assert set(filled) <= set(places)
        recut_residuals += told_by_parameter(RESIDUAL, filled, LAYOUT) + rest
        if before == after and points_after > 1:
            assert not rest
    for name, values in summed(recut_residuals).items():
        torch.testing.assert_close(values, expected[name])


def test_the_same_ranks_resume_with_the_same_bits() -> None:
    feedback = ErrorFeedback(DGC(TENTH), momentum=0.5)
    row = Row(0, 0, 60, 40)
    feedback.encode(row, normal(40, 0), [range(60, 100)], 0)
    again = ErrorFeedback(DGC(TENTH), momentum=0.5)
    state = to_state(feedback.kept(LAYOUT))
    assert {name.partition("/")[0] for name in state} == {RESIDUAL, VELOCITY}
    assert again.take(from_state(state), [Row(1, 0, 0, 50), row], LAYOUT, "cpu") == []
    values = normal(40, 1)
    first, second = (either.encode(row, values.clone(), [range(60, 100)], 1) for either in (feedback, again))
    assert torch.equal(first, second)


def test_residuals_without_a_place_are_returned_and_momentum_dropped() -> None:
    state = [
        Kept(RESIDUAL, "a", 0, 60, torch.arange(10.0)),
        Kept(RESIDUAL, "unknown", 0, 0, torch.ones(3)),
        Kept(VELOCITY, "d", 0, 0, torch.ones(50)),
    ]
    feedback = ErrorFeedback(DGC(TENTH), momentum=0.5)
    left = feedback.take(state, [Row(0, 0, 65, 20)], LAYOUT, "cpu")
    assert [(item.parameter, item.start, len(item.values)) for item in left] == [
        ("a", 60, 5),
        ("unknown", 0, 3),
    ]
    (residual, *more) = feedback.kept(LAYOUT)
    assert residual.parameter == "a"
    assert residual.start == 65
    assert residual.values.tolist() == [5.0, 6.0, 7.0, 8.0, 9.0]
    assert all(item.kind == RESIDUAL for item in more)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("residual/0/0/3", torch.zeros(3)),
        ("other/0/0/3/a", torch.zeros(3)),
        ("residual/-1/0/3/a", torch.zeros(3)),
        ("residual/0/0/4/a", torch.zeros(3)),
        ("residual/0/0/3/a", torch.zeros(3, dtype=torch.float64)),
        ("residual/0/0/3/a", torch.zeros(3, 1)),
    ],
)
def test_a_state_of_another_kind_is_refused(name: str, values: Tensor) -> None:
    with pytest.raises(ValueError, match="residual|other"):
        from_state({name: values})
    assert from_state({"residual/2/1/3/a/b": torch.zeros(3)})[0].parameter == "a/b"
