"""Parsing of a fusion plan's message (Cupcake)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from communication.cupcake.partitions import Boundaries
from communication.espresso.options import Level, Option, Routine, Step, Task
from communication.plan import content_digest
from communication.profiles.codec import Device
from communication.profiles.model import ModelProfile
from communication.profiles.placement import PlacementShape

_PLANNER = "cupcake"
_UNCOMPRESSED = "none"
_LONGEST_NAME = 100


@dataclass(frozen=True, slots=True)
class FusionOrders:
    """The content of a plan: its digest, the placement, the codec and its device, and the boundaries."""

    digest: str
    placement: PlacementShape
    codec: str
    device: Device
    boundaries: Boundaries

    @property
    def option(self) -> Option:
        """The option of each group in Espresso's terms.

        One server: all-gather payloads. Several: reduce-scatter within servers, all-gather payloads between
        them, all-gather within. Without a codec an all-reduce replaces encode, gather, decode.
        """
        level = Level.INTER if self.placement.spread else Level.FLAT
        between: Option = (Step(Task.COMM, Routine.ALL_REDUCE, level),)
        if self.codec != _UNCOMPRESSED:
            between = (
                Step(Task.COMP, Routine.ENCODE, None, self.device),
                Step(Task.COMM_C, Routine.ALL_GATHER, level),
                Step(Task.DECOMP, Routine.DECODE, None, self.device),
            )
        if not self.placement.spread:
            return between
        first = Step(Task.COMM1, Routine.REDUCE_SCATTER, Level.INTRA)
        return (first, *between, Step(Task.COMM2, Routine.ALL_GATHER, Level.INTRA))


def parse_fusion_plan(
    message: Mapping[str, Any], names: Sequence[str], elements: Sequence[int]
) -> FusionOrders:
    """Parse a plan's message.

    Args:
        names, elements: of the gradients to exchange, in order of readiness.

    Raises ValueError for another planner's message, a digest that does not match, gradients other than the
    plan's, missing or malformed values.
    """
    if not isinstance(message, Mapping) or message.get("planner") != _PLANNER:
        raise ValueError(f"this is not a message of the planner {_PLANNER}")
    digest = check_digest(message)
    check_layout(message, names, elements)
    return FusionOrders(
        digest,
        PlacementShape(whole_number(message, "servers"), whole_number(message, "gpus_per_server")),
        codec_name(message),
        Device(str(message.get("device"))),
        boundaries_of(message, len(names)),
    )


def check_digest(message: Mapping[str, Any]) -> str:
    """Return the digest of a plan's message. Raises ValueError if it does not match the content."""
    try:
        digest = content_digest(message)
    except TypeError as error:
        raise ValueError(f"the message is not made of plain values: {error}") from error
    if message.get("digest") != digest:
        raise ValueError("the digest of the plan does not match its content")
    return digest


def check_layout(message: Mapping[str, Any], names: Sequence[str], elements: Sequence[int]) -> None:
    """Raise ValueError if a plan was made for other gradients."""
    sizes = np.array(elements, dtype=np.int64)
    layout = ModelProfile("gradients", tuple(names), sizes, np.zeros(len(names))).layout
    if message.get("layout") != layout:
        raise ValueError("the plan is for other gradients: their names, sizes or order differ")


def codec_name(message: Mapping[str, Any]) -> str:
    """Return a plan's codec. Raises ValueError if it is missing or malformed."""
    codec = message.get("codec")
    if not isinstance(codec, str) or not 0 < len(codec) <= _LONGEST_NAME:
        raise ValueError(f"codec must be a name of 1 to {_LONGEST_NAME} characters")
    return codec


def boundaries_of(message: Mapping[str, Any], tensors: int) -> Boundaries:
    """Return the boundaries of a plan's groups. Raises ValueError unless they partition the tensors."""
    told = message.get("boundaries")
    if not isinstance(told, list | tuple) or not all(type(each) is int for each in told):
        raise ValueError("the boundaries of the plan must be a list of whole numbers")
    if [0, *told][-1] != tensors or any(low >= high for low, high in pairwise((0, *told))):
        raise ValueError(f"the boundaries must ascend from at least 1 to {tensors}, the number of tensors")
    return tuple(told)


def whole_number(message: Mapping[str, Any], key: str) -> int:
    """Return a positive integer of a plan. Raises ValueError for anything else."""
    found = message.get(key)
    if type(found) is not int or found < 1:
        raise ValueError(f"{key} of the plan is {found!r}; it must be a positive whole number")
    return found
