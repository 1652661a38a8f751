"""What all communication plans of a gradient profile are made of."""

from __future__ import annotations

from dataclasses import dataclass

from communication.profiles.link import LinkProfile
from communication.profiles.placement import PlacementShape


@dataclass(frozen=True)
class PlanInputs:
    """``digest`` covers all other fields and what was measured."""

    shape: PlacementShape
    links: LinkProfile
    families: tuple[str, ...]
    memory_bytes: int | None
    digest: str
