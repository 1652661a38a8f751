"""The common input of all planners: a job's gradients, its placement, and what is allowed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from communication.combined.plan import CandidatePlan
from communication.plan import content_digest
from communication.profiles.codec import CodecProfile
from communication.profiles.link import LinkProfile
from communication.profiles.model import ModelProfile
from communication.profiles.placement import PlacementShape
from communication.zen.profile import SparsityProfile

#: Planners in tie-breaking order, the simplest first.
PLANNERS = ("dense", "zen", "cupcake", "espresso", "combined")
MOST_CHOSEN_ONE_BY_ONE = 400


@dataclass(frozen=True)
class PlanQuestion:
    """The question which plan minimises an iteration.

    Attributes:
        job: a name from which seeds are derived, equal for all generations of a job.
        model: all gradients. sparse: profiles of the mostly zero ones; each once.
        codecs: measured ones, or the library's; the same name on several devices is one algorithm.
        lossy: whether lossy codecs may be used; if ``codec_names`` is set, only these.
        memory_bytes: device memory for buffers on each GPU; None if unknown.
        dense_element_bytes: size of an element sent without a plan; under a plan it is the model's.
        most_one_by_one: largest number of tensors, or of fused groups, for which Espresso is asked, since it
            takes seconds.
        planners: those whose plans can be executed; `dense` always can.
        offered: plans from other rooms' planners, which compete by their predictions.

    Raises ValueError for a sparsity profile of a tensor that is not in the model or has another size, an
    unknown planner, a negative memory.
    """

    job: str
    model: ModelProfile
    placement: PlacementShape
    links: LinkProfile
    sparse: tuple[SparsityProfile, ...] = ()
    codecs: tuple[CodecProfile, ...] = ()
    lossy: bool = False
    codec_names: tuple[str, ...] | None = None
    memory_bytes: int | None = None
    planners: tuple[str, ...] = PLANNERS
    dense_element_bytes: int = 4
    most_one_by_one: int = MOST_CHOSEN_ONE_BY_ONE
    offered: tuple[CandidatePlan, ...] = ()

    def __post_init__(self) -> None:
        elements = dict(zip(self.model.tensor_names, self.model.elements.tolist(), strict=True))
        names = [each.tensor for each in self.sparse]
        if len(set(names)) < len(names):
            raise ValueError("a tensor has two sparsity profiles")
        for each in self.sparse:
            if elements.get(each.tensor) != each.elements:
                raise ValueError(f"the model has no tensor {each.tensor!r} of {each.elements} elements")
        if unknown := set(self.planners) - set(PLANNERS):
            raise ValueError(f"there is no planner {min(unknown)!r}; there are {', '.join(PLANNERS)}")
        if self.memory_bytes is not None and self.memory_bytes < 0:
            raise ValueError(f"memory_bytes is {self.memory_bytes}; it must not be negative")

    @cached_property
    def allowed_codecs(self) -> dict[str, tuple[CodecProfile, ...]]:
        """Profiles by algorithm, one per device: exact codecs, and lossy ones that the job may use."""
        found: dict[str, tuple[CodecProfile, ...]] = {}
        for codec in self.codecs:
            named = self.codec_names is None or codec.name in self.codec_names
            if codec.exact or (self.lossy and named):
                found[codec.name] = (*found.get(codec.name, ()), codec)
        found.pop("none", None)
        return found

    @cached_property
    def rows(self) -> tuple[SparsityProfile, ...]:
        """The sparse gradients kept as rows: they are always exchanged separately."""
        return tuple(each for each in self.sparse if each.rows)

    @cached_property
    def dense_model(self) -> ModelProfile:
        """The model with the element size used without a plan."""
        return replace(self.model, bytes_per_element=self.dense_element_bytes)

    def beside(self, apart: Collection[str]) -> ModelProfile | None:
        """Return the gradients other than those in ``apart``; None if there are none.

        Compute time between two of them is assigned to the later one; time after the last is left out (the
        model's `backward_seconds` has it). Gradients without elements are not sent."""
        if not apart and self.model.elements.all():
            return self.model
        kept_rows = [
            place
            for place, name in enumerate(self.model.tensor_names)
            if name not in apart and self.model.elements[place]
        ]
        if not kept_rows:
            return None
        ready = np.cumsum(self.model.gap_seconds)[kept_rows]
        return ModelProfile(
            self.model.name,
            tuple(self.model.tensor_names[place] for place in kept_rows),
            self.model.elements[kept_rows],
            np.diff(ready, prepend=0.0),
            self.model.other_seconds,
            self.model.bytes_per_element,
        )

    @property
    def digest(self) -> str:
        """SHA-256 of all input of the answer."""
        offered = [[each.digest, each.predicted.iteration_seconds] for each in self.offered]
        return content_digest(
            {
                **({"offered": offered} if offered else {}),
                "job": self.job,
                "model": self.model.digest,
                "sparse": [repr(each) for each in self.sparse],
                "placement": repr(self.placement),
                "links": repr(self.links),
                "codecs": [each.digest for each in self.codecs],
                "lossy": [self.lossy, None if self.codec_names is None else sorted(self.codec_names)],
                "memory": self.memory_bytes,
                "planners": [*sorted(self.planners), self.most_one_by_one],
                "dense": self.dense_element_bytes,
            }
        )
