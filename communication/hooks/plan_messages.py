"""Parsing of plan messages of several planners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from communication.espresso import plan as espresso
from communication.espresso.decision_tree import belongs
from communication.espresso.options import Option, compressions, option_from_code
from communication.hooks import fusion_orders
from communication.hooks.fusion_orders import check_digest, codec_name, parse_fusion_plan, whole_number
from communication.profiles.placement import PlacementShape

COMBINED = "combined"
_BYTES_PER_ELEMENT = 4


@dataclass(frozen=True, slots=True)
class GroupOrders:
    """The option of each group of gradients.

    Attributes:
        digest: of the plan. placement, codec: of all groups.
        boundaries: for each group one more than its last gradient, in order of readiness.
        options: of each group.
    """

    digest: str
    placement: PlacementShape
    codec: str
    boundaries: tuple[int, ...]
    options: tuple[Option, ...]

    @property
    def compresses(self) -> bool:
        """Whether some option encodes."""
        return any(map(compressions, self.options))


def orders_of(message: Mapping[str, Any], names: Sequence[str], elements: Sequence[int]) -> GroupOrders:
    """Parse the message of a fusion plan, a combined plan, or an Espresso plan, where each gradient is a
    group.

    Args:
        names, elements: of the gradients to exchange, in order of readiness.

    Raises ValueError for other planners' messages, a digest that does not match, gradients other than the
    plan's, missing or malformed values.
    """
    planner = message.get("planner") if isinstance(message, Mapping) else None
    if planner == espresso.PLANNER:
        return _of_espresso(message, names, elements)
    if planner == COMBINED:
        return _of_combined(message, names, elements)
    fusion = parse_fusion_plan(message, names, elements)
    options = (fusion.option,) * len(fusion.boundaries)
    return GroupOrders(fusion.digest, fusion.placement, fusion.codec, fusion.boundaries, options)


def _of_espresso(message: Mapping[str, Any], names: Sequence[str], elements: Sequence[int]) -> GroupOrders:
    told = espresso.parse_espresso_plan(message)
    if [(each.name, each.elements) for each in told.tensors] != list(zip(names, elements, strict=True)):
        raise ValueError("the plan is for other gradients: their names, sizes or order differ")
    _check_element(told.bytes_per_element)
    boundaries = tuple(range(1, len(names) + 1))
    options = tuple(each.option for each in told.tensors)
    return GroupOrders(message["digest"], told.placement, told.codec, boundaries, options)


def _of_combined(message: Mapping[str, Any], names: Sequence[str], elements: Sequence[int]) -> GroupOrders:
    digest = check_digest(message)
    fusion_orders.check_layout(message, names, elements)
    boundaries = fusion_orders.boundaries_of(message, len(names))
    codes, numbers = message.get("options"), message.get("group_options")
    if not isinstance(codes, list) or not all(isinstance(code, str) for code in codes):
        raise ValueError("the options of the plan must be a list of codes")
    options = [option_from_code(code) for code in codes]
    if not all(map(belongs, options)):
        raise ValueError("the plan has an option that the decision tree does not have")
    if not isinstance(numbers, list) or len(numbers) != len(boundaries):
        raise ValueError("each group of the plan must have the number of an option")
    if not all(type(each) is int and 0 <= each < len(options) for each in numbers):
        raise ValueError("a group of the plan has the number of an option that the plan does not have")
    _check_element(whole_number(message, "bytes_per_element"))
    placement = PlacementShape(whole_number(message, "servers"), whole_number(message, "gpus_per_server"))
    return GroupOrders(
        digest, placement, codec_name(message), boundaries, tuple(options[each] for each in numbers)
    )


def _check_element(size: int) -> None:
    if size != _BYTES_PER_ELEMENT:
        raise ValueError(f"the plan has {size} bytes per element; gradients are sent as FP32, with 4 bytes")
