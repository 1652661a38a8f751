"""Error feedback: what a codec has not sent is added to its next input."""

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

    With a momentum, it applies DGC's correction: each rank sends its own momentum, and forgets it where it
    was sent (Lin and others, 2018, 3.1 and 3.2). This replaces the optimizer's momentum and is wrong together
    with one. Later compression points of an option apply no momentum again.

    A value that is not finite is sent and not kept, because it would stay for ever.
    """

    def __init__(self, codec: Codec, momentum: float = 0.0) -> None:
        """Raises ValueError for a momentum outside [0, 1), or with a codec that sends something of every
        element."""
        if not 0.0 <= momentum < 1.0:
            raise ValueError(f"momentum is {momentum}; it must be at least 0 and below 1")
        if momentum and not isinstance(codec, SparseCodec):
            raise ValueError(
                f"{codec.name} sends something of every element; momentum masking needs a sparse codec"
            )
        self.codec = codec
        self._momentum = momentum
        self._rows: dict[Row, Tensor] = {}
        self._velocities: dict[Row, Tensor] = {}

    def encode(self, row: Row, values: Tensor, pieces: Sequence[range], seed: int) -> Tensor:
        """Return the payload of a part of a gradient plus its residual.

        Args:
            values: flat FP32, of the row's part; they may be overwritten.
            pieces: of the gradient, which cover the part and are encoded separately.
            seed: see `Codec.encode`; pieces use different seeds derived from it.
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
        """Return the norm of this rank's residuals."""
        return float(sum(float(row.double().square().sum()) for row in self._rows.values()) ** 0.5)

    def kept(self, layout: Sequence[Sequence[Segment]], copies: Container[Row] = frozenset()) -> list[Kept]:
        """Return all residuals and momentum by parameter, as views.

        ``copies``: rows that another rank has and reports as well.
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
        """Run `take` on this rank's own state under the same plan: its copies become its rows again."""
        own = {RESIDUAL_COPY: RESIDUAL, VELOCITY_COPY: VELOCITY}
        return self.take(
            [replace(each, kind=own.get(each.kind, each.kind)) for each in kept], rows, layout, device
        )

    def take(
        self, kept: Sequence[Kept], rows: Iterable[Row], layout: Sequence[Sequence[Segment]], device: object
    ) -> list[Kept]:
        """Replace the current state by what ranks have kept.

        Args:
            rows: of this rank, distinct from all other ranks' rows. device: where they are encoded.

        Returns:
            Residuals that fit no row: they are still to be sent. Momentum that fits no row is dropped, and so
            are copies.
        """
        residuals = [each for each in kept if each.kind == RESIDUAL]
        self._rows, self._velocities = {}, {}
        if self.codec.exact:
            # An exact codec has no rows.
            return residuals
        wanted = list(rows)
        filled, left = recut(residuals, wanted, layout)
        self._rows = {row: values.to(device) for row, values in filled.items()}
        if self._momentum:
            filled, _ = recut([each for each in kept if each.kind == VELOCITY], wanted, layout)
            self._velocities = {row: values.to(device) for row, values in filled.items()}
        return left


def seed_of(*numbers: int) -> int:
    """Return a seed below 2^32 derived from numbers, distinct with high probability."""
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
