"""The runtime plan that all ranks of a generation must share before they exchange data, and its digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from communication.library.codec_names import FAITHFUL
from communication.profiles.link import LinkRate


class PlanFamily(StrEnum):
    """Runtime plans among which a job's is chosen. A scaling curve belongs to one family.

    Levels measured under one family never count for another. At each number of GPUs a family has one plan for
    a job: the fastest of those that it allows. Where codecs are named, a family's name tells them
    (`family_name`).
    """

    #: No plan: tensors are all-reduced, rows of sparse embeddings gathered.
    DENSE = "dense"
    #: Plans under which every gradient arrives as it was computed.
    LOSSLESS = "lossless"
    #: Those, and plans that compress gradients with codecs that lose something: where none is named, with
    #: those that leave the loss as it is.
    LOSSY = "lossy"


def family_name(*, lossy: bool, codecs: Sequence[str] = ()) -> str:
    """The family of a job's plans. ``codecs``: the only ones that it allows; empty for those that are used
    where nobody names any. Who names just these has the same plans, and so the same family."""
    if not lossy:
        return PlanFamily.LOSSLESS.value
    named = sorted(set(codecs))
    if not named or named == sorted(FAITHFUL):
        return PlanFamily.LOSSY.value
    return f"{PlanFamily.LOSSY}({'+'.join(named)})"


def codecs_of_family(family: str) -> tuple[str, ...]:
    """The codecs that lose something and may be used: those that are named, else those under which the loss
    is that of training without them."""
    if not family.startswith(PlanFamily.LOSSY):
        return ()
    named = family.removeprefix(PlanFamily.LOSSY).strip("()")
    return tuple(named.split("+")) if named else FAITHFUL


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
    #: Pairs of name and plain value; the name states the unit.
    choices: tuple[tuple[str, Any], ...] = ()

    def to_message(self) -> dict[str, Any]:
        """As it is sent."""
        return {"kind": self.kind, "choices": dict(self.choices)}


@dataclass(frozen=True)
class RuntimePlan:
    """How the ranks of one generation synchronise gradients."""

    #: The plan family's name.
    family: str
    #: Whether the GPUs are on one server or on several.
    shape: Shape
    #: The synchronisers in order; each takes gradients that those before it left.
    synchronisers: tuple[Synchroniser, ...]
    #: In a measurement, those of the levels that have others: numbers of ranks with synchronisers.
    at_levels: tuple[tuple[int, tuple[Synchroniser, ...]], ...] = ()
    #: The slowest measured link between the servers, by which rows of experts choose their way.
    link: LinkRate | None = None

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
        content: dict[str, Any] = {
            "family": str(self.family),
            "shape": self.shape.value,
            "synchronisers": [one.to_message() for one in self.synchronisers],
        }
        if self.at_levels:
            content["at_levels"] = {
                str(ranks): [one.to_message() for one in synchronisers]
                for ranks, synchronisers in self.at_levels
            }
        if self.link is not None:
            content["link"] = {
                "latency_seconds": self.link.latency_seconds,
                "bytes_per_second": self.link.bytes_per_second,
            }
        return content
