"""What a scheduling policy is: a pure answer to two questions about one snapshot."""

from __future__ import annotations

from typing import Protocol

from scheduling.core.decision import Decision, FoundOffer, Verdict
from scheduling.core.snapshot import JobSnapshot, Snapshot


class Policy(Protocol):
    """One way to divide the cluster. The same snapshot always yields the same decision."""

    name: str

    def admit(self, snapshot: Snapshot) -> Decision:
        """Verdicts on newcomers while all present allocations stay as they are."""
        ...

    def replan(self, snapshot: Snapshot) -> Decision:
        """Verdicts, and a new allocation and placement from ``next_slot_at`` on."""
        ...

    def find_offer(self, snapshot: Snapshot, job: JobSnapshot) -> FoundOffer | None:
        """A deadline that can be promised for work that starts after an offer was held, or None."""
        ...

    def what_if(self, snapshot: Snapshot, job: JobSnapshot) -> tuple[Verdict, FoundOffer | None]:
        """The verdict a job would get, and an offer where it is refused; nothing is kept."""
        ...
