"""The runtime plan of a generation as a worker is told it. The control plane makes it, here it is checked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: What the families of plans begin with under which codecs may lose something.
_LOSSY = "lossy"


@dataclass(frozen=True)
class SynchroniserChoice:
    """A kind of synchroniser and what was chosen for it."""

    kind: str
    choices: Mapping[str, Any]


@dataclass(frozen=True)
class RuntimePlan:
    """How the ranks of a generation work together (docs/protocols.md 2.6).

    Attributes:
        digest: SHA-256 of the content; all ranks must have the same.
        synchronisers: each takes charge of what the ones before it have left.
        lossless: whether the job's gradients have to arrive as they were computed.
    """

    digest: str
    synchronisers: tuple[SynchroniserChoice, ...]
    lossless: bool = True

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> RuntimePlan:
        """Read the `runtime_plan` of an assignment.

        Raises:
            KeyError: a field is missing.
            ValueError: it is not what its digest was made of, or makes no sense.
        """
        digest = message["digest"]
        actual = content_digest(message)
        if digest != actual:
            raise ValueError(f"the runtime plan's content has the digest {actual}, not {digest}")
        choices = tuple(
            SynchroniserChoice(str(one["kind"]), dict(one["choices"])) for one in message["synchronisers"]
        )
        return cls(actual, choices, not str(message["family"]).startswith(_LOSSY))


def content_digest(message: Mapping[str, Any]) -> str:
    """SHA-256 of all that a plan says, its digest left out."""
    content = {name: value for name, value in message.items() if name != "digest"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
