"""Parsing of the message of Zen's plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from communication.hooks.fusion_orders import check_digest, whole_number
from communication.hooks.zen.packets import PACKET_FORMATS
from communication.profiles.placement import PlacementShape
from communication.zen.choosing import EXECUTABLE
from communication.zen.formats import Format
from communication.zen.hash_family import HashFamily
from communication.zen.indices import MOST_ELEMENTS
from communication.zen.plan import PLANNER
from communication.zen.schemes import Scheme

MOST_TENSORS = 4096
_LONGEST_NAME = 500


@dataclass(frozen=True, slots=True)
class TensorOrders:
    """The scheme of one sparse gradient. ``width``: values that share one index."""

    name: str
    elements: int
    width: int
    scheme: Scheme
    push_format: Format
    pull_format: Format


@dataclass(frozen=True, slots=True)
class ZenOrders:
    """The content of a plan: its digest, the placement, the hashes of all tensors, and the tensors."""

    digest: str
    placement: PlacementShape
    hashes: HashFamily
    tensors: tuple[TensorOrders, ...]


def zen_orders_from_message(message: Mapping[str, Any]) -> ZenOrders:
    """Parse a plan's message.

    Raises ValueError for another planner's message, a digest that does not match, missing or malformed
    values, schemes and formats that ranks cannot execute.
    """
    if not isinstance(message, Mapping) or message.get("planner") != PLANNER:
        raise ValueError(f"this is not a message of the planner {PLANNER}")
    digest = check_digest(message)
    seeds, tensors = message.get("seeds"), message.get("tensors")
    if not isinstance(seeds, list) or not all(type(each) is int for each in seeds):
        raise ValueError("the seeds of the plan must be a list of whole numbers")
    if not isinstance(tensors, list) or len(tensors) > MOST_TENSORS:
        raise ValueError(f"the tensors of the plan must be a list of at most {MOST_TENSORS}")
    read = tuple(map(_tensor, tensors))
    if len({each.name for each in read}) < len(read):
        raise ValueError("two tensors of the plan have the same name")
    placement = PlacementShape(whole_number(message, "servers"), whole_number(message, "gpus_per_server"))
    return ZenOrders(digest, placement, HashFamily(tuple(seeds)), read)


def _tensor(entry: Any) -> TensorOrders:
    if not isinstance(entry, Mapping):
        raise ValueError("a tensor of the plan must have a name, sizes, a scheme and formats")
    name = entry.get("tensor")
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME:
        raise ValueError(f"a tensor's name must have 1 to {_LONGEST_NAME} characters")
    elements, width = whole_number(entry, "elements"), whole_number(entry, "width")
    if elements % width or elements // width > MOST_ELEMENTS:
        raise ValueError(f"tensor {name!r} has {elements} elements; they must be whole rows of {width}")
    scheme = _one_of(entry, "scheme", EXECUTABLE)
    formats = [_one_of(entry, key, PACKET_FORMATS) for key in ("push_format", "pull_format")]
    return TensorOrders(name, elements, width, Scheme(scheme), Format(formats[0]), Format(formats[1]))


def _one_of(entry: Mapping[str, Any], key: str, known: tuple[str, ...]) -> str:
    value = entry.get(key)
    if value not in known:
        raise ValueError(f"{key} of a tensor is {value!r}; it must be one of {', '.join(known)}")
    return str(value)
