"""Operations submitted in opposite orders all end; a failure to carry them out is reported."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from moe.lina.micro_operations import MicroOperation, Traffic, cut
from moe.lina.scheduler import Mode
from tests.communication.hooks.ranks import run_on_ranks
from workers.runtime.lina.communication import Begin, Pending, ScheduledCommunication

LENGTH = 12


def opposite_orders(mode: Mode) -> tuple[list[float], list[float], list[str]]:
    """Submit two gradients and rows, each rank in its own order. Return the arrivals, and the order of this
    rank's launches."""
    rows_group, dense, experts = (dist.new_group([0, 1]) for _ in range(3))
    control = dist.new_group([0, 1]) if mode is Mode.LEADER else None
    communication = ScheduledCommunication(mode, control=control)
    ended: list[Pending] = []
    communication.on_end = ended.append
    rank = dist.get_rank()
    gradients = {"": torch.arange(float(LENGTH)), "experts": torch.arange(float(LENGTH))}
    leaving, arrived = torch.full((4,), float(rank)), torch.empty(4)

    def reduce(lane: str) -> None:
        values, group = gradients[lane], experts if lane else dense
        pieces = cut(Traffic.ALL_REDUCE, f"gradient {lane}", LENGTH, 4, 16, lane)

        def begin(piece: MicroOperation) -> Begin:
            part = values[piece.first : piece.first + piece.length]
            return lambda: dist.all_reduce(part, group=group, async_op=True)

        communication.submit((piece, begin(piece)) for piece in pieces)

    def exchange() -> None:
        operation = MicroOperation(Traffic.ALL_TO_ALL, "rows")
        begin = lambda: dist.all_to_all_single(arrived, leaving, group=rows_group, async_op=True)  # noqa: E731
        communication.submit([(operation, begin)])

    steps = [lambda: reduce(""), lambda: reduce("experts"), exchange]
    for step in steps if rank == 0 else reversed(steps):
        step()
        # Both ranks submit before either continues.
        dist.barrier()
    communication.flush()
    communication.close()
    assert gradients[""].tolist() == gradients["experts"].tolist()
    launched = sorted(ended, key=lambda pending: pending.launched_at or 0.0)
    return gradients[""].tolist(), arrived.tolist(), [str(pending.operation) for pending in launched]


def both_modes() -> list[tuple[list[float], list[float], list[str]]]:
    return [opposite_orders(Mode.BOUNDED_OVERLAP), opposite_orders(Mode.LEADER)]


def test_opposite_orders_of_submission_do_not_deadlock() -> None:
    first, second = run_on_ranks(2, both_modes)
    for gradient, arrived, launched in (*first, *second):
        assert gradient == [2.0 * number for number in range(LENGTH)]
        assert arrived == [0.0, 0.0, 1.0, 1.0]
        assert len(launched) == 7
    # The second rank launched in the order of the first.
    assert first[1][2] == second[1][2]


def test_a_failed_micro_operation_fails_all_later_ones() -> None:
    communication = ScheduledCommunication()

    def begin() -> None:
        raise ValueError("the peer is gone")

    first, second = communication.submit(
        [(MicroOperation(Traffic.ALL_TO_ALL, "rows", number, 2), begin) for number in range(2)]
    )
    for pending in (first, second):
        with pytest.raises(RuntimeError, match="rows was not exchanged: the peer is gone"):
            pending.wait()
    with pytest.raises(RuntimeError, match="communication has failed: the peer is gone"):
        communication.flush()
    communication.close()


def test_the_end_of_an_iteration_ends_a_hold() -> None:
    communication = ScheduledCommunication()
    communication.hold()
    (pending,) = communication.submit([(MicroOperation(Traffic.ALL_REDUCE, "gradient"), lambda: None)])
    communication.flush()
    assert pending.ended_at is not None
    communication.close()
