"""Operations of options, executed as described, sum gradients on every path."""

from __future__ import annotations

import numpy as np
import pytest

from communication.espresso.decision_tree import gpu_options, options
from communication.espresso.operations import Resource, operations, part_bounds, piece_bounds
from communication.espresso.options import Option, Task, compressions, option_code
from communication.profiles.placement import PlacementShape
from tests.communication.espresso.carried_out import carry_out

SHAPES = [PlacementShape(*each) for each in ((2, 4), (3, 2), (1, 4), (4, 1), (1, 1), (3, 3))]


def gradients(shape: PlacementShape, elements: int) -> np.ndarray:
    """Return integers, so that sums are exact in any order."""
    rng = np.random.default_rng(elements)
    return rng.integers(-1000, 1000, (shape.workers, elements)).astype(np.float64)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("elements", [pytest.param(1000, marks=pytest.mark.slow), 96, 7, 1])
def test_each_of_the_174_options_sums_on_every_rank(shape: PlacementShape, elements: int) -> None:
    values = gradients(shape, elements)
    for option in gpu_options():
        for rank in carry_out(option, shape, values):
            assert rank.stack is None, option_code(option)
            np.testing.assert_array_equal(rank.sums, values.sum(axis=0), option_code(option))


def _halved(values: np.ndarray) -> np.ndarray:
    """Return signs with the piece's mean magnitude, which identifies the piece that was encoded."""
    scale = np.abs(values).mean() if len(values) else 0.0
    return np.where(values >= 0, scale, -scale)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_ranks_hold_the_same_values_after_lossy_options_too(shape: PlacementShape) -> None:
    values = gradients(shape, 101)
    for option in gpu_options():
        first, *others = carry_out(option, shape, values, encode=_halved)
        for rank in others:
            np.testing.assert_array_equal(rank.sums, first.sums, option_code(option))


def test_exchanges_among_one_participant_are_left_out() -> None:
    alone = PlacementShape(1, 1)
    assert {operations(option, alone) for option in options()} == {()}
    for option in gpu_options():
        levels = {operation.step.level for operation in operations(option, PlacementShape(4, 1))} - {None}
        assert levels <= {"flat", "inter"}
        packed = operations(option, PlacementShape(1, 4))
        assert {item.step.level for item in packed} - {None} <= {"flat", "intra"}
        assert all(item.resource(PlacementShape(1, 4)) is not Resource.BETWEEN for item in packed)


def test_points_of_compression_are_numbered() -> None:
    for option in options()[::7]:
        points = [
            operation.point for operation in operations(option, SHAPES[0]) if operation.step.task is Task.COMP
        ]
        assert points == list(range(compressions(option)))


def test_devices_change_nothing_but_the_resource() -> None:
    shape = PlacementShape(2, 2)
    values = gradients(shape, 50)
    for option in options()[::31]:
        for rank in carry_out(option, shape, values):
            np.testing.assert_array_equal(rank.sums, values.sum(axis=0))
        assert {
            operation.resource(shape) for operation in operations(option, shape) if operation.step.is_codec
        } == {Resource[step.device.name] for step in option if step.device is not None}


def _named(text: str) -> Option:
    (matching,) = (option for option in gpu_options() if option_code(option) == text)
    return matching


def test_operations_of_a_long_option_equal_the_hand_worked_ones() -> None:
    """On two servers with four GPUs: encoded before the exchange within servers, and again between them."""
    shape = PlacementShape(2, 4)
    path = operations(
        _named(
            "Comp/encode/gpu Comm1_c/all-to-all/intra Decomp/decode/gpu Comp/encode/gpu "
            "Comm1_c/all-to-all/inter Decomp/decode/gpu Comp/encode/gpu Comm2_c/all-gather/inter "
            "Comm2_c/all-gather/intra Decomp/decode/gpu"
        ),
        shape,
    )
    assert [operation.parts for operation in path] == [1, 1, 4, 4, 4, 8, 8, 8, 4, 1]
    assert [operation.payloads for operation in path] == [1, 1, 4, 1, 1, 2, 1, 1, 1, 1]
    assert [operation.pieces for operation in path] == [4, 4, 1, 2, 2, 1, 1, 1, 2, 8]
    assert [operation.participants for operation in path] == [1, 4, 1, 1, 2, 1, 1, 2, 4, 1]
    assert not any(operation.first_gpu_alone or operation.first_server_alone for operation in path)


def test_only_roots_continue_after_a_gather() -> None:
    shape = PlacementShape(2, 4)
    path = operations(
        _named(
            "Comp/encode/gpu Comm1_c/gather/intra Comm1_c/gather/inter Decomp/decode/gpu "
            "Comm2/broadcast/inter Comm2/broadcast/intra"
        ),
        shape,
    )
    assert [operation.payloads for operation in path] == [1, 1, 4, 8, 1, 1]
    assert [operation.per_server for operation in path] == [4, 4, 1, 1, 1, 4]
    taking_part = [
        [(server, gpu) for server in range(2) for gpu in range(4) if operation.takes_part(server, gpu)]
        for operation in path
    ]
    assert [len(ranks) for ranks in taking_part] == [8, 8, 2, 1, 2, 8]


def test_parts_and_pieces_cover_a_gradient_once() -> None:
    shape = PlacementShape(3, 4)
    for option in gpu_options():
        for operation in operations(option, shape):
            covered = sorted(
                number
                for part in {
                    part_bounds(100, operation.cuts, server, gpu, shape)
                    for server in range(3)
                    for gpu in range(4)
                }
                for piece in piece_bounds(part, operation.piece_cuts[len(operation.cuts) :])
                for number in piece
            )
            assert covered == list(range(100))
