"""Espresso's communication plan: an option for each tensor, in a form that ranks can execute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from communication.espresso.decision_tree import belongs
from communication.espresso.operations import Operation, operations
from communication.espresso.options import Option, compressions, option_code, option_from_code
from communication.library.codec_names import KEEPS_MOMENTUM
from communication.plan import Prediction, content_digest
from communication.profiles.placement import PlacementShape

PLANNER = "espresso"
MOST_TENSORS = 100_000
MOST_ELEMENTS = 1 << 40
LONGEST_NAME = 500
UNCOMPRESSED = "none"


@dataclass(frozen=True, slots=True)
class TensorOption:
    """The option of one tensor. ``name``, ``elements``: of its gradient."""

    name: str
    elements: int
    option: Option


@dataclass(frozen=True)
class EspressoPlan:
    """How a job's gradients are compressed and sent in one generation.

    Attributes:
        placement: for which it was made.
        codec: the compression algorithm; `UNCOMPRESSED` for none. exact: whether decoding restores what was
            encoded.
        bytes_per_element: of an uncompressed gradient.
        tensors: in order of readiness.
        payload_bytes: sum over all tensors of the largest stack of payloads that a rank holds.
        predicted: with this plan. predicted_dense: without compression, from the same profiles.
    """

    placement: PlacementShape
    codec: str
    exact: bool
    bytes_per_element: int
    tensors: tuple[TensorOption, ...]
    payload_bytes: int
    predicted: Prediction
    predicted_dense: Prediction

    @property
    def planner(self) -> str:
        """Name of the planner."""
        return PLANNER

    @property
    def compressed_tensors(self) -> tuple[TensorOption, ...]:
        """Tensors that are compressed at least once."""
        return tuple(each for each in self.tensors if compressions(each.option))

    @property
    def lossless(self) -> bool:
        """Whether every gradient arrives as computed, up to the rounding order of sums."""
        return self.exact or not self.compressed_tensors

    @property
    def residual_bytes(self) -> int:
        """Bytes of error feedback on the rank with most: a row for each compression point, and another one
        for codecs that keep a momentum."""
        rows = 2 if self.codec in KEEPS_MOMENTUM else 1
        return rows * sum(
            self.bytes_per_element * elements_of_part(operation, each.elements)
            for each in self.compressed_tensors
            for operation in operations(each.option, self.placement)
            if operation.point is not None
        )

    @property
    def buffer_bytes(self) -> int:
        """Bytes of device memory on a GPU: gradients once more for their sums, payloads, residuals. Assumes
        that nothing is freed before the iteration ends."""
        sums = sum(each.elements for each in self.tensors) * self.bytes_per_element
        return sums + self.payload_bytes + (0 if self.exact else self.residual_bytes)

    def to_message(self) -> dict[str, Any]:
        """Return the message that ranks execute, with its digest."""
        content = self._content()
        return {**content, "digest": content_digest(content)}

    @property
    def digest(self) -> str:
        """SHA-256 of what ranks execute."""
        return content_digest(self._content())

    def _content(self) -> dict[str, Any]:
        codes = {
            option: number for number, option in enumerate(dict.fromkeys(o.option for o in self.tensors))
        }
        return {
            "planner": PLANNER,
            "servers": self.placement.servers,
            "gpus_per_server": self.placement.gpus_per_server,
            "codec": self.codec,
            "bytes_per_element": self.bytes_per_element,
            "options": [option_code(option) for option in codes],
            "tensors": [[each.name, each.elements, codes[each.option]] for each in self.tensors],
        }


def elements_of_part(operation: Operation, elements: int) -> int:
    """Return the elements of the largest part that a rank holds before an operation."""
    return -(-elements // operation.parts)


@dataclass(frozen=True, slots=True)
class EspressoOrders:
    """The content of a plan's message for ranks: the placement, the codec, and the option of each tensor."""

    placement: PlacementShape
    codec: str
    bytes_per_element: int
    tensors: tuple[TensorOption, ...]


def parse_espresso_plan(message: Mapping[str, Any]) -> EspressoOrders:
    """Parse a plan's message.

    Raises ValueError for another planner's message, a digest that does not match, missing or malformed
    values, options that are not in the decision tree, more tensors or elements than allowed.
    """
    if not isinstance(message, Mapping) or message.get("planner") != PLANNER:
        raise ValueError(f"this is not a message of the planner {PLANNER}")
    try:
        digest = content_digest(message)
    except TypeError as error:
        raise ValueError(f"the message is not made of plain values: {error}") from error
    if message.get("digest") != digest:
        raise ValueError("the digest of the plan does not match its content")
    options = tuple(map(_known_option, _list(message, "options")))
    entries = _list(message, "tensors")
    if not 0 < len(entries) <= MOST_TENSORS:
        raise ValueError(f"the plan has {len(entries)} tensors; it must have 1 to {MOST_TENSORS}")
    tensors = tuple(_tensor(each, options) for each in entries)
    if len({each.name for each in tensors}) != len(tensors):
        raise ValueError("two tensors of the plan have the same name")
    codec = message.get("codec")
    if not isinstance(codec, str) or not 0 < len(codec) <= LONGEST_NAME:
        raise ValueError("the plan has no codec; it must name one")
    return EspressoOrders(
        PlacementShape(_whole(message, "servers"), _whole(message, "gpus_per_server")),
        codec,
        _whole(message, "bytes_per_element"),
        tensors,
    )


def _known_option(code: Any) -> Option:
    option = option_from_code(code)
    if not belongs(option):
        raise ValueError(f"the decision tree has no option {code!r}")
    return option


def _tensor(entry: Any, options: tuple[Option, ...]) -> TensorOption:
    if not isinstance(entry, list | tuple) or len(entry) != 3:
        raise ValueError(
            "a tensor of the plan must have a name, a number of elements and the number of an option"
        )
    name, elements, number = entry
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
        raise ValueError(f"a tensor's name must have 1 to {LONGEST_NAME} characters")
    if not _is_whole(elements) or not 0 < elements <= MOST_ELEMENTS:
        raise ValueError(f"tensor {name!r} has {elements!r} elements; it must have 1 to {MOST_ELEMENTS}")
    if not _is_whole(number) or not 0 <= number < len(options):
        raise ValueError(f"tensor {name!r} has the option {number!r}, which the plan does not have")
    return TensorOption(name, elements, options[number])


def _list(message: Mapping[str, Any], key: str) -> list[Any]:
    value = message.get(key)
    if not isinstance(value, list):
        raise ValueError(f"{key} of the plan must be a list")
    return value


def _whole(message: Mapping[str, Any], key: str) -> int:
    value = message.get(key)
    if not _is_whole(value) or not 0 < value <= MOST_ELEMENTS:
        raise ValueError(f"{key} of the plan is {value!r}; it must be a positive whole number")
    return value


def _is_whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
