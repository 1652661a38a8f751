"""The planner: from model, placement, links and codecs to a plan with its prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from communication.espresso.baselines import fastest_by_itself
from communication.espresso.costs import CostModel
from communication.espresso.operations import Resource, operations
from communication.espresso.plan import UNCOMPRESSED, EspressoPlan, TensorOption
from communication.espresso.question import Question, question_of
from communication.espresso.selection import select
from communication.plan import Prediction
from communication.profiles.arrays import Integers
from communication.profiles.codec import CodecProfile, Device
from communication.profiles.link import LinkProfile
from communication.profiles.model import ModelProfile
from communication.profiles.placement import PlacementShape


def plan_compression(
    model: ModelProfile,
    placement: PlacementShape,
    links: LinkProfile,
    codecs: Mapping[Device, CodecProfile],
) -> EspressoPlan:
    """Return the plan of a job on a placement.

    Args:
        codecs: one algorithm on the devices that may compress; empty to compress nothing.

    Raises ValueError for a tensor without elements, codecs of several algorithms, no option.
    """
    question = question_of(model, CostModel(placement, links, codecs))
    selection = select(question)
    plain = np.flatnonzero(question.compressions == 0)
    dense = fastest_by_itself(question, plain) if plain.size else selection.strategy
    compresses = bool((question.compressions[selection.strategy] > 0).any())
    codec = next(iter(codecs.values())) if compresses else None
    return EspressoPlan(
        placement=placement,
        codec=codec.name if codec is not None else UNCOMPRESSED,
        exact=codec is None or codec.exact,
        bytes_per_element=model.bytes_per_element,
        tensors=tuple(
            TensorOption(name, int(elements), question.options[column])
            for name, elements, column in zip(
                model.tensor_names, model.elements, selection.strategy, strict=True
            )
        ),
        payload_bytes=_payload_bytes(question, selection.strategy),
        predicted=predicted(question, selection.strategy),
        predicted_dense=predicted(question, dense),
    )


def predicted(question: Question, strategy: Integers) -> Prediction:
    """Predict an iteration under a strategy, with each resource's time."""
    table, size_of = question.table, question.table.size_of
    totals = table.chains.totals[size_of, strategy].sum(axis=0)
    spans = question.engine.spans(strategy)
    computing = [(each.start, each.end) for each in spans if each.resource in (Resource.GPU, Resource.CPU)]
    end = max(each.end for each in spans)
    return Prediction(
        iteration_seconds=question.engine.seconds(strategy),
        bytes_between=float(table.between_bytes[size_of, strategy].sum()),
        bytes_within=float(table.within_bytes[size_of, strategy].sum()),
        device_seconds=float(totals[Resource.GPU]),
        host_seconds=float(totals[Resource.CPU]),
        exposed_seconds=max(0.0, end - _covered(computing)),
    )


def _payload_bytes(question: Question, strategy: Integers) -> int:
    """Return the sum over all tensors of the largest stack of payloads held between two operations."""
    model, costs = question.model, question.costs
    largest = np.zeros(len(model))
    for column in np.unique(strategy):
        tensors = np.flatnonzero(strategy == column)
        for operation in operations(question.options[column], costs.shape):
            if operation.compressed:
                held = costs.held_bytes(operation, model.elements[tensors], model.bytes_per_element)
                largest[tensors] = np.maximum(largest[tensors], held)
    return int(largest.sum())


def _covered(spans: Sequence[tuple[float, float]]) -> float:
    """Return the seconds covered by at least one of these spans."""
    covered, until = 0.0, 0.0
    for start, end in sorted(spans):
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    return covered
