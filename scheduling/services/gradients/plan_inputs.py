"""What all communication plans of a gradient profile are made of."""

from __future__ import annotations

from dataclasses import dataclass

from communication.profiles.link import LinkProfile
from communication.profiles.placement import PlacementShape
from moe.lina.shared_link import Rates


@dataclass(frozen=True)
class PlanInputs:
    """``digest`` covers all other fields and what was measured. ``rates``: of rows and gradients that overlap
    on a link. ``expert_bytes``: the most that experts of a worker may take; None where they do not move."""

    shape: PlacementShape
    links: LinkProfile
    families: tuple[str, ...]
    memory_bytes: int | None
    digest: str
    rates: Rates = Rates()
    expert_bytes: int | None = None
