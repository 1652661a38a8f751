"""Zen's communication plan: a scheme for each sparse tensor, all-reduces for the rest, and a prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from communication.plan import Prediction, content_digest
from communication.profiles.link import LinkProfile
from communication.profiles.model import ModelProfile
from communication.profiles.placement import PlacementShape
from communication.zen.choosing import HASHED, NOTHING, OperationTimes, TensorChoice, choose_scheme
from communication.zen.formats import INDEX_BYTES, VALUE_BYTES
from communication.zen.hash_family import HashFamily, drawn_family
from communication.zen.iteration import dense_traffic
from communication.zen.profile import SparsityProfile
from communication.zen.schemes import Scheme

PLANNER = "zen"
#: Buffers are made for so many times what is expected.
BUFFER_SHARE = 1.25
#: P and the inverse map, for each unit.
TABLE_BYTES = 2 * INDEX_BYTES


@dataclass(frozen=True)
class ZenPlan:
    """How a job's gradients are synchronised in one generation.

    Attributes:
        placement: that it was made for.
        hashes: of all tensors, drawn from the job's name, so that a worker that starts again draws the same.
        tensors: a choice for each sparse tensor; those whose choice is dense are all-reduced with the rest.
        predicted: with this plan. predicted_dense: with all-reduces alone, from the same profiles.
    """

    placement: PlacementShape
    hashes: HashFamily
    tensors: tuple[TensorChoice, ...]
    predicted: Prediction
    predicted_dense: Prediction

    @property
    def planner(self) -> str:
        """Its name."""
        return PLANNER

    @property
    def lossless(self) -> bool:
        """Every gradient arrives, up to the order in which sums are rounded."""
        return True

    @property
    def sparse_tensors(self) -> tuple[TensorChoice, ...]:
        """Those that are not all-reduced."""
        return tuple(each for each in self.tensors if each.scheme is not Scheme.DENSE)

    @property
    def buffer_bytes(self) -> int:
        """Of device memory on each GPU: tables of partitions, and what is sent and received."""
        gpus = self.placement.gpus_per_server if self.placement.spread else 1
        return sum(_buffer_bytes(each, gpus) for each in self.sparse_tensors)

    def to_message(self) -> dict[str, Any]:
        """What ranks carry out, with its digest."""
        content = self._content()
        return {**content, "digest": content_digest(content)}

    @property
    def digest(self) -> str:
        """SHA-256 of what ranks carry out."""
        return content_digest(self._content())

    def _content(self) -> dict[str, Any]:
        return {
            "planner": PLANNER,
            "servers": self.placement.servers,
            "gpus_per_server": self.placement.gpus_per_server,
            "seeds": list(self.hashes.seeds),
            "tensors": [
                {
                    "tensor": each.profile.tensor,
                    "elements": each.profile.elements,
                    "width": each.profile.width,
                    "scheme": each.scheme.value,
                    "push_format": each.push_format.value,
                    "pull_format": each.pull_format.value,
                }
                for each in self.sparse_tensors
            ],
        }


def plan_sparse(
    job: str,
    model: ModelProfile,
    profiles: Sequence[SparsityProfile],
    placement: PlacementShape,
    links: LinkProfile,
    *,
    times: OperationTimes = NOTHING,
    adaptive_push: bool = False,
) -> ZenPlan:
    """The plan of a job on a placement.

    Args:
        job: a name that seeds are drawn from; equal for all its generations.
        profiles: of tensors of ``model`` that are sparse; each once.
        times: what a worker's own part of an exchange takes.

    Raises ValueError for a profile of a tensor that the model does not have, or of another size.
    """
    _check(model, profiles)
    choices = [
        choose_scheme(each, placement, links, times=times, adaptive_push=adaptive_push) for each in profiles
    ]
    best = _predicted(model, placement, links, choices)
    all_reduced = [each if each.profile.rows else replace(each, scheme=Scheme.DENSE) for each in choices]
    dense = _predicted(model, placement, links, all_reduced)
    if dense.iteration_seconds <= best.iteration_seconds:
        choices, best = all_reduced, dense
    for place, other in enumerate(all_reduced):
        # Beside the backward pass an all-reduce may cost less than a faster exchange after it.
        changed = [*choices[:place], other, *choices[place + 1 :]]
        predicted = _predicted(model, placement, links, changed)
        if predicted.iteration_seconds < best.iteration_seconds:
            choices, best = changed, predicted
    return ZenPlan(placement, drawn_family(job), tuple(choices), best, dense)


def at_batch_share(profiles: Sequence[SparsityProfile], share: float) -> tuple[SparsityProfile, ...]:
    """The profiles where each worker's batch is ``share`` times the one that they were measured with."""
    return tuple(replace(each, densification=each.densification.with_batch(share)) for each in profiles)


def _check(model: ModelProfile, profiles: Sequence[SparsityProfile]) -> None:
    elements = dict(zip(model.tensor_names, model.elements.tolist(), strict=True))
    names = [each.tensor for each in profiles]
    if len(set(names)) < len(names):
        raise ValueError("a tensor has two sparsity profiles")
    for each in profiles:
        if each.tensor not in elements:
            raise ValueError(f"there is a sparsity profile of {each.tensor!r}, which the model does not have")
        if elements[each.tensor] != each.elements:
            raise ValueError(
                f"{each.tensor!r} has {elements[each.tensor]} elements, and {each.elements} in its sparsity "
                "profile"
            )


def _predicted(
    model: ModelProfile, placement: PlacementShape, links: LinkProfile, choices: Sequence[TensorChoice]
) -> Prediction:
    sparse = [each for each in choices if each.scheme is not Scheme.DENSE]
    apart = {each.profile.tensor for each in sparse}
    dense = dense_traffic(model, placement, links, apart)
    backward = model.backward_seconds
    communicated = max(backward, dense.end_seconds) + sum(each.cost.seconds for each in sparse)
    operations = sum(each.cost.operation_seconds for each in sparse)
    received = sum(each.cost.received_bytes for each in sparse)
    within = dense.bytes_within + sum(each.within_bytes for each in sparse)
    return Prediction(
        iteration_seconds=model.other_seconds + communicated,
        bytes_between=dense.bytes_between + (received if placement.spread else 0.0),
        bytes_within=within + (0.0 if placement.spread else received),
        device_seconds=operations,
        exposed_seconds=communicated - backward - operations,
    )


def _buffer_bytes(choice: TensorChoice, gpus: int) -> int:
    """Of a tensor, of which each of ``gpus`` GPUs of a server synchronises its share."""
    profile = choice.profile
    own = profile.densification.after(gpus) * profile.units
    sent = own * (INDEX_BYTES + VALUE_BYTES * profile.width)
    held = BUFFER_SHARE * (sent + choice.cost.received_bytes)
    if choice.scheme in HASHED:
        held += TABLE_BYTES * profile.units + profile.dense_bytes / choice.participants
    return ceil(held / gpus)
