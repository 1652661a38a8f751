"""Common inputs of all communication plans of a gradient profile."""

from __future__ import annotations

from dataclasses import dataclass

from communication.profiles.link import LinkProfile
from communication.profiles.placement import PlacementShape
from moe.lina.shared_link import Rates


@dataclass(frozen=True)
class PlanInputs:
    """Inputs of plans. ``digest`` covers all other fields and the measured gradients. ``rates``: shares of
    a link for rows and gradients that overlap. ``expert_bytes``: the most that a worker's experts may
    take; None if they do not move."""

    shape: PlacementShape
    links: LinkProfile
    families: tuple[str, ...]
    memory_bytes: int | None
    digest: str
    rates: Rates = Rates()
    expert_bytes: int | None = None
