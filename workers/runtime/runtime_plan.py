"""The runtime plan of a generation as a worker receives it. The control plane makes it; this module checks
it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from communication.profiles.link import LinkRate

#: Prefix of the plan families that allow lossy codecs.
_LOSSY = "lossy"


@dataclass(frozen=True)
class SynchroniserChoice:
    """A kind of synchroniser and its choices."""

    kind: str
    choices: Mapping[str, Any]


@dataclass(frozen=True)
class RuntimePlan:
    """How the ranks of a generation work together (docs/protocols.md 2.6).

    Attributes:
        digest: SHA-256 of the content; all ranks must have the same.
        synchronisers: each takes parameters that the ones before it have left.
        lossless: whether the job's gradients must arrive as computed.
        link: the slowest measured link between the generation's servers; None if none was measured.
        at_levels: in a measurement, the synchronisers for numbers of ranks where they differ.
    """

    digest: str
    synchronisers: tuple[SynchroniserChoice, ...]
    lossless: bool = True
    link: LinkRate | None = None
    at_levels: Mapping[int, tuple[SynchroniserChoice, ...]] = field(default_factory=dict)

    def at(self, ranks: int) -> RuntimePlan:
        """Return the plan for this number of ranks of a measurement."""
        return replace(self, synchronisers=self.at_levels.get(ranks, self.synchronisers), at_levels={})

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> RuntimePlan:
        """Read the `runtime_plan` of an assignment.

        Raises:
            KeyError: a field is missing.
            ValueError: its content does not match its digest, or is invalid.
        """
        digest = message["digest"]
        actual = content_digest(message)
        if digest != actual:
            raise ValueError(f"the runtime plan's content has the digest {actual}, not {digest}")
        levels = {int(ranks): _choices(told) for ranks, told in message.get("at_levels", {}).items()}
        lossless = not str(message["family"]).startswith(_LOSSY)
        return cls(actual, _choices(message["synchronisers"]), lossless, _link(message.get("link")), levels)


def _choices(told: Sequence[Mapping[str, Any]]) -> tuple[SynchroniserChoice, ...]:
    return tuple(SynchroniserChoice(str(one["kind"]), dict(one["choices"])) for one in told)


def _link(told: Mapping[str, Any] | None) -> LinkRate | None:
    if told is None:
        return None
    return LinkRate(float(told["latency_seconds"]), float(told["bytes_per_second"]))


def content_digest(message: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a plan's content without its digest."""
    content = {name: value for name, value in message.items() if name != "digest"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
