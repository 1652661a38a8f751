"""The runtime plan that all ranks of a generation must share before they exchange data, and its digest."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class PlanFamily(StrEnum):
    """Runtime plans that are equally fast. A scaling curve belongs to one family.

    Levels measured under one family never count for another.
    """

    #: Every gradient travels as it was computed: tensors are all-reduced, rows of sparse embeddings gathered.
    DENSE = "dense"


class Shape(StrEnum):
    """Whether a generation's GPUs are on one server or on several."""

    #: All on one server.
    PACKED = "packed"
    #: On several.
    SPREAD = "spread"


@dataclass(frozen=True)
class Synchroniser:
    """One kind of gradient synchroniser with its choices."""

    #: Its name in the training runtime (`workers/runtime/synchronisation/kinds.py`).
    kind: str
    #: Pairs of name and value; the name states the unit.
    choices: tuple[tuple[str, int | bool], ...] = ()


@dataclass(frozen=True)
class RuntimePlan:
    """How the ranks of one generation synchronise gradients."""

    #: The plan family.
    family: PlanFamily
    #: Whether the GPUs are on one server or on several.
    shape: Shape
    #: The synchronisers in order; each takes gradients that those before it left.
    synchronisers: tuple[Synchroniser, ...]

    @property
    def digest(self) -> str:
        """SHA-256 of the content. Ranks with different digests must not exchange data."""
        content = json.dumps(self._content(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(content.encode()).hexdigest()

    def to_message(self) -> dict[str, Any]:
        """The plan as stored and sent (docs/protocols.md 2.6)."""
        return {**self._content(), "digest": self.digest}

    def _content(self) -> dict[str, Any]:
        """The plan without its digest."""
        return {
            "family": self.family.value,
            "shape": self.shape.value,
            "synchronisers": [{"kind": one.kind, "choices": dict(one.choices)} for one in self.synchronisers],
        }
