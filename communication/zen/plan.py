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
#: Buffer size over the expected size.
BUFFER_SHARE = 1.25
#: P and the inverse map, per unit.
TABLE_BYTES = 2 * INDEX_BYTES


@dataclass(frozen=True)
class ZenPlan:
    """The synchronisation of a job's gradients in one generation.

    Attributes:
        placement: for which it was made.
        hashes: of all tensors, derived from the job's name, so that restarted workers derive the same.
        tensors: a choice for each sparse tensor; dense choices are all-reduced with the rest.
        predicted: with this plan. predicted_dense: with all-reduces alone, from the same profiles.
    """

    placement: PlacementShape
    hashes: HashFamily
    tensors: tuple[TensorChoice, ...]
    predicted: Prediction
    predicted_dense: Prediction

    @property
    def planner(self) -> str:
        """Name of the planner."""
        return PLANNER

    @property
    def lossless(self) -> bool:
        """Always true: every gradient arrives, up to the rounding order of sums."""
        return True

    @property
    def sparse_tensors(self) -> tuple[TensorChoice, ...]:
        """Tensors that are not all-reduced."""
        return tuple(each for each in self.tensors if each.scheme is not Scheme.DENSE)

    @property
    def buffer_bytes(self) -> int:
        """Device memory on each GPU: partition tables, and data sent and received."""
        gpus = self.placement.gpus_per_server if self.placement.spread else 1
        return sum(_buffer_bytes(each, gpus) for each in self.sparse_tensors)

    def to_message(self) -> dict[str, Any]:
        """Return the message that ranks execute, with its digest."""
        content = self._content()
        return {**content, "digest": content_digest(content)}

    @property
    def digest(self) -> str:
        """SHA-256 of what ranks execute."""
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
    """Return the plan of a job on a placement.

    Args:
        job: a name from which seeds are derived; equal for all its generations.
        profiles: of the sparse tensors of ``model``; distinct.
        times: a worker's own time in an exchange.

    Raises ValueError for a profile of a tensor that is not in the model, or of another size.
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
        # An all-reduce during the backward pass may cost less than a faster exchange after it.
        changed = [*choices[:place], other, *choices[place + 1 :]]
        predicted = _predicted(model, placement, links, changed)
        if predicted.iteration_seconds < best.iteration_seconds:
            choices, best = changed, predicted
    return ZenPlan(placement, drawn_family(job), tuple(choices), best, dense)


def at_batch_share(profiles: Sequence[SparsityProfile], share: float) -> tuple[SparsityProfile, ...]:
    """Return the profiles for a batch per worker of ``share`` times the measured one."""
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
    """Return the buffers of a tensor, of which each of a server's ``gpus`` GPUs synchronises a share."""
    profile = choice.profile
    own = profile.densification.after(gpus) * profile.units
    sent = own * (INDEX_BYTES + VALUE_BYTES * profile.width)
    held = BUFFER_SHARE * (sent + choice.cost.received_bytes)
    if choice.scheme in HASHED:
        held += TABLE_BYTES * profile.units + profile.dense_bytes / choice.participants
    return ceil(held / gpus)
