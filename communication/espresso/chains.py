"""Chains of operations as arrays: seconds of each option for each tensor size, by resource."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from communication.espresso.costs import CostModel
from communication.espresso.operations import Operation, Resource, operations
from communication.espresso.options import Option
from communication.profiles.arrays import Floats, Integers
from communication.profiles.model import ModelProfile


@dataclass(frozen=True, eq=False)
class Chains:
    """One chain for each option, with times for each size.

    Attributes:
        resources: `Resource` of each operation, one row per option; entries beyond `lengths` are padding.
        lengths: operations of each option.
        seconds: by size, option and operation; 0 for padding.
    """

    resources: Integers
    lengths: Integers
    seconds: Floats

    @cached_property
    def totals(self) -> Floats:
        """Seconds of each resource, by size and option."""
        found = np.zeros((*self.seconds.shape[:2], len(Resource)))
        for resource in Resource:
            found[:, :, resource] = np.where(self.resources == resource, self.seconds, 0.0).sum(axis=2)
        return found

    @cached_property
    def isolated(self) -> Floats:
        """Total seconds of all operations in sequence, by size and option."""
        return np.asarray(self.seconds.sum(axis=2))

    @cached_property
    def first_exchange(self) -> Integers:
        """Number of each option's first exchange; -1 without one."""
        place = np.arange(self.resources.shape[1])
        exchanges = (self.resources >= Resource.WITHIN) & (place < self.lengths[:, None])
        return np.where(exchanges.any(axis=1), exchanges.argmax(axis=1), -1).astype(np.int64)


@dataclass(frozen=True, eq=False)
class OptionTable:
    """The options among which tensors choose, and their costs.

    Attributes:
        options: the columns of all arrays. elements: the distinct sizes, ascending; the rows.
        size_of: the row of each tensor's size.
        between_bytes: bytes that a server receives from others, by size and option. within_bytes: bytes that
            a GPU receives from others of its server.
    """

    costs: CostModel
    options: tuple[Option, ...]
    elements: Integers
    size_of: Integers
    chains: Chains
    between_bytes: Floats
    within_bytes: Floats

    @cached_property
    def columns(self) -> dict[Option, int]:
        """The column of each option."""
        return {option: column for column, option in enumerate(self.options)}


def option_table(model: ModelProfile, costs: CostModel, among: Sequence[Option]) -> OptionTable:
    """Return the chains of some options for a model's tensors.

    Raises ValueError for a tensor without elements, options without a codec for their device, no option.
    """
    if not among:
        raise ValueError("there is no option to choose from")
    if not np.all(model.elements > 0):
        empty = model.tensor_names[int(np.flatnonzero(model.elements <= 0)[0])]
        raise ValueError(f"tensor {empty!r} has no elements: there is nothing to send")
    missing = {step.device for option in among for step in option if step.device} - set(costs.devices)
    if missing:
        raise ValueError(f"options compress on {', '.join(sorted(missing))}, for which there is no codec")
    elements, size_of = np.unique(model.elements, return_inverse=True)
    paths = [operations(option, costs.shape) for option in among]
    longest = max(1, *map(len, paths))
    resources = np.zeros((len(among), longest), dtype=np.int64)
    seconds = np.zeros((len(elements), len(among), longest))
    received = np.zeros((len(Resource), len(elements), len(among)))
    priced: dict[Operation, tuple[Floats, Floats]] = {}
    for column, path in enumerate(paths):
        for number, operation in enumerate(path):
            if operation not in priced:
                priced[operation] = _priced(costs, operation, elements, model.bytes_per_element)
            resource = operation.resource(costs.shape)
            seconds[:, column, number], received_now = priced[operation]
            received[resource, :, column] += received_now
            shared = costs.single_channel and resource is Resource.WITHIN
            resources[column, number] = Resource.BETWEEN if shared else resource
    return OptionTable(
        costs=costs,
        options=tuple(among),
        elements=elements,
        size_of=size_of.astype(np.int64),
        chains=Chains(resources, np.array([len(path) for path in paths], dtype=np.int64), seconds),
        between_bytes=received[Resource.BETWEEN],
        within_bytes=received[Resource.WITHIN],
    )


def _priced(
    costs: CostModel, operation: Operation, elements: Integers, bytes_per_element: int
) -> tuple[Floats, Floats]:
    """Return the seconds of an operation, and the bytes that a server or a GPU receives."""
    received = costs.received_bytes(operation, elements, bytes_per_element) * costs.sharers(operation)
    return costs.seconds(operation, elements, bytes_per_element), received
