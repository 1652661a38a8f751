"""What all ranks of a generation must have alike before they exchange anything, and its digest."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class PlanFamily(StrEnum):
    """Plans of one family run at the same speed, so a scaling curve belongs to one.

    Levels measured under one family never stand for another.
    """

    #: Every gradient travels as it was computed: tensors are all-reduced, rows of sparse embeddings gathered.
    DENSE = "dense"


class Shape(StrEnum):
    """Where the GPUs of a generation are."""

    #: All on one server.
    PACKED = "packed"
    #: On several.
    SPREAD = "spread"


@dataclass(frozen=True)
class Synchroniser:
    """One kind of gradient synchroniser with its choices.

    Attributes:
        kind: its name in the training runtime (`workers/runtime/synchronisation/kinds.py`).
        choices: name and value; a name tells the unit.
    """

    kind: str
    choices: tuple[tuple[str, int | bool], ...] = ()


@dataclass(frozen=True)
class RuntimePlan:
    """How one generation's ranks synchronise.

    Attributes:
        synchronisers: each takes charge of what the ones before it have left.
    """

    family: PlanFamily
    shape: Shape
    synchronisers: tuple[Synchroniser, ...]

    @property
    def digest(self) -> str:
        """SHA-256 of the content: ranks whose digests differ must not exchange anything."""
        content = json.dumps(self._content(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(content.encode()).hexdigest()

    def to_message(self) -> dict[str, Any]:
        """As it is stored and sent (docs/protocols.md 2.6)."""
        return {**self._content(), "digest": self.digest}

    def _content(self) -> dict[str, Any]:
        return {
            "family": self.family.value,
            "shape": self.shape.value,
            "synchronisers": [{"kind": one.kind, "choices": dict(one.choices)} for one in self.synchronisers],
        }
