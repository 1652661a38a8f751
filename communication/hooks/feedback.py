"""Error feedback: what a codec has not sent is added to what it encodes next (specification 1.2)."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from communication.hooks.codecs.interface import Codec
from communication.hooks.codecs.sparse import SparseCodec
from communication.hooks.residuals import (
    RESIDUAL,
    RESIDUAL_COPY,
    VELOCITY,
    VELOCITY_COPY,
    Kept,
    Row,
    Segment,
    recut,
    told_by_parameter,
)

_WORD = 0xFFFFFFFF


class ErrorFeedback:
    """A codec, and what it has not sent yet: a row for each place where this rank encodes.

    With a momentum, DGC's correction: what is sent is that of a momentum of each rank's own, which is
    forgotten where it was sent (Lin and others, 2018, 3.1 and 3.2). It stands for the optimizer's momentum
    and is wrong beside one. What is encoded anew on its way has had its momentum already.

    A value that is not finite is sent and not kept: it would never end.
    """

    def __init__(self, codec: Codec, momentum: float = 0.0) -> None:
        """Raises ValueError for a momentum that is not at least 0 and below 1, or with a codec that sends
        something of every element."""
        if not 0.0 <= momentum < 1.0:
            raise ValueError(f"a momentum is at least 0 and below 1, not {momentum}")
        if momentum and not isinstance(codec, SparseCodec):
            raise ValueError(f"{codec.name} sends something of every element: no momentum is forgotten")
        self.codec = codec
        self._momentum = momentum
        self._rows: dict[Row, Tensor] = {}
        self._velocities: dict[Row, Tensor] = {}

    def encode(self, row: Row, values: Tensor, pieces: Sequence[range], seed: int) -> Tensor:
        """The payload of a part of a gradient, and of what was left of it before.

        Args:
            values: flat FP32, of the row's part; they may be written over.
            pieces: of the gradient, which cover the part and are encoded each by itself.
            seed: see `Codec.encode`; pieces get others that follow from it.
        """
        if self.codec.exact:
            whole, velocity = values, None
        else:
            whole, velocity = self._with_what_was_left(row, values)
        payloads = []
        for piece in pieces:
            place = slice(piece.start - row.start, piece.stop - row.start)
            payload = self.codec.encode(whole[place], seed_of(seed, piece.start))
            payloads.append(payload)
            if self.codec.exact:
                continue
            self.codec.add(payload, whole[place], -1.0)
            if velocity is not None and len(piece):
                assert isinstance(self.codec, SparseCodec)
                self.codec.forget(payload, velocity[place])
        if not self.codec.exact:
            whole.nan_to_num_(0.0, 0.0, 0.0)
        return payloads[0] if len(payloads) == 1 else torch.cat(payloads)

    def _with_what_was_left(self, row: Row, values: Tensor) -> tuple[Tensor, Tensor | None]:
        left = _row(self._rows, row, values)
        if not self._momentum or row.point:
            return left.add_(values), None
        velocity = _row(self._velocities, row, values)
        left.add_(velocity.mul_(self._momentum).add_(values))
        return left, velocity.nan_to_num_(0.0, 0.0, 0.0)

    def norm(self) -> float:
        """Of all that was not sent yet on this rank."""
        return float(sum(float(row.double().square().sum()) for row in self._rows.values()) ** 0.5)

    def kept(self, layout: Sequence[Sequence[Segment]], copies: Container[Row] = frozenset()) -> list[Kept]:
        """All of it, by parameter; it shares memory with what is kept.

        ``copies``: rows that another rank has as well and tells.
        """
        return [
            each
            for own, copied, rows in (
                (RESIDUAL, RESIDUAL_COPY, self._rows),
                (VELOCITY, VELOCITY_COPY, self._velocities),
            )
            for row, values in rows.items()
            for each in told_by_parameter(copied if row in copies else own, {row: values}, layout)
        ]

    def resume(
        self, kept: Sequence[Kept], rows: Iterable[Row], layout: Sequence[Sequence[Segment]], device: object
    ) -> list[Kept]:
        """`take`, with what this rank has kept itself under the same plan: its copies are its own rows."""
        own = {RESIDUAL_COPY: RESIDUAL, VELOCITY_COPY: VELOCITY}
        return self.take(
            [replace(each, kind=own.get(each.kind, each.kind)) for each in kept], rows, layout, device
        )

    def take(
        self, kept: Sequence[Kept], rows: Iterable[Row], layout: Sequence[Sequence[Segment]], device: object
    ) -> list[Kept]:
        """Go on with what ranks have kept, in place of what is kept now.

        Args:
            rows: of this rank, none of which another rank has as well. device: where they are encoded.

        Returns:
            Residuals that no row has a place for: they are still to be sent. Momentum that no row has a place
            for is forgotten, and so are copies.
        """
        residuals = [each for each in kept if each.kind == RESIDUAL]
        self._rows, self._velocities = {}, {}
        if self.codec.exact:
            # It has no rows.
            return residuals
        wanted = list(rows)
        filled, left = recut(residuals, wanted, layout)
        self._rows = {row: values.to(device) for row, values in filled.items()}
        if self._momentum:
            filled, _ = recut([each for each in kept if each.kind == VELOCITY], wanted, layout)
            self._velocities = {row: values.to(device) for row, values in filled.items()}
        return left


def seed_of(*numbers: int) -> int:
    """A seed below 2^32 that follows from numbers, and looks like no other's."""
    word = 0
    for number in numbers:
        word = (word ^ number ^ number >> 32) * 0x9E3779B1 & _WORD
        word = (word ^ word >> 15) * 0x85EBCA6B & _WORD
        word ^= word >> 13
    return word


def _row(rows: dict[Row, Tensor], row: Row, values: Tensor) -> Tensor:
    found = rows.get(row)
    if found is None:
        found = rows[row] = torch.zeros_like(values)
    return found
