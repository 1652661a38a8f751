"""The interface of `Admission` for its helper classes."""

from __future__ import annotations

from typing import Protocol

from scheduling.core.elasticflow.deadline_order import DeadlineOrder
from scheduling.core.elasticflow.pause_budget import PauseBudget
from scheduling.core.elasticflow.search_limits import SearchLimits
from scheduling.core.plans.timeline import Timeline
from scheduling.core.problem.problem import Problem
from scheduling.core.problem.work import Work
from scheduling.core.question.arrays import Plans
from scheduling.core.question.snapshot import FloatArray


class Promises(Protocol):
    """The attributes and methods of `Admission` that its helpers use; `Admission` documents them."""

    problem: Problem
    budget: PauseBudget
    search: SearchLimits | None
    work: Work
    plans: Plans
    rows: list[int]
    at_risk: list[int]

    def own_rows(self) -> list[int]: ...

    def in_deadline_order(self, rows: list[int]) -> list[int]: ...

    def deadline_order(self, *, suffix: bool) -> DeadlineOrder: ...

    def timeline(self, rows: list[int], plans: Plans | None = None) -> Timeline: ...

    def free_beside_promises(self) -> Timeline: ...

    def filled_beside(self, row: int, due: float, *, suffix: bool | None = None) -> Plans | None: ...

    def filled_in_order(
        self, order: list[int], carry: FloatArray, *, suffix: bool
    ) -> tuple[Plans, int | None]: ...

    def refilled(self, rows: list[int], *, promising: bool = False) -> tuple[Plans, list[int]]: ...
