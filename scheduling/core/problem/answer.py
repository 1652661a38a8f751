"""One decision's answer as arrays, and the same in the snapshot's terms."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from scheduling.core.problem.problem import Problem
from scheduling.core.question.arrays import BoolArray, Placements, Plans, rows_where
from scheduling.core.question.decision import Change, Decision, Verdict
from scheduling.core.question.snapshot import FloatArray, IntArray


@dataclass(frozen=True)
class Answer:
    """What a policy decided about a `Problem`; rows are the problem's.

    ``planned``: rows whose plan in ``plans`` is to be stored (the others keep theirs, or have none).
    ``declined``: newcomers that are refused, and those that get no verdict yet (`undecided`): nothing is
    planned for either. ``placements``: GPUs from ``next_slot_at`` on. ``changed``: the row of each change.
    ``next_wake_at``: on the caller's axis. ``job_memory`` and ``cluster_memory``: what the policy wants to be
    told again next time. ``flexible`` and ``server_roles``: which GPUs of the placements flexible workers
    hold, and the role of every server, from policies that divide servers of both kinds.
    """

    problem: Problem
    verdicts: tuple[Verdict, ...]
    plans: Plans
    planned: BoolArray
    declined: BoolArray
    placements: Placements
    changes: tuple[Change, ...]
    at_risk: tuple[int, ...]
    next_wake_at: float
    used_stored_plans: bool = False
    notes: tuple[str, ...] = ()
    changed: tuple[int, ...] = ()
    job_memory: FloatArray | None = None
    cluster_memory: FloatArray = field(default_factory=lambda: np.zeros(0))
    flexible: BoolArray | None = None
    server_roles: IntArray | None = None


def rows_of(verdicts: tuple[Verdict, ...] | list[Verdict], problem: Problem) -> BoolArray:
    """True for every newcomer that the verdicts refuse or say nothing of; they are of the first newcomers, in
    the order of their rows."""
    declined = problem.columns.newcomer.copy()
    for row, verdict in zip(problem.newcomers, verdicts, strict=False):
        declined[row] = not verdict.admitted
    return declined


def undecided(answer: Answer) -> tuple[str, ...]:
    """Newcomers that have to wait for their verdict, in the order in which they will get it."""
    ids = answer.problem.columns.ids
    return tuple(ids[row] for row in answer.problem.newcomers[len(answer.verdicts) :])


def as_decision(answer: Answer) -> Decision:
    """The answer by job id, with times on the caller's axis."""
    problem = answer.problem
    ids = problem.columns.ids
    rows = rows_where(answer.planned).tolist()
    stored = problem.stored_plans(answer.plans, rows)
    memory = answer.job_memory
    return Decision(
        verdicts=answer.verdicts,
        undecided=undecided(answer),
        plans={ids[row]: plan for row, plan in zip(rows, stored, strict=True)},
        placements={
            ids[row]: answer.placements.of(row) for row in range(problem.count) if not answer.declined[row]
        },
        changes=answer.changes,
        at_risk=tuple(ids[row] for row in answer.at_risk),
        next_wake_at=answer.next_wake_at,
        used_stored_plans=answer.used_stored_plans,
        notes=answer.notes,
        memory=tuple(answer.cluster_memory.tolist()),
        job_memory=(
            {}
            if memory is None
            else {
                ids[row]: tuple(memory[row].tolist())
                for row in range(problem.count)
                if not answer.declined[row]
            }
        ),
        flexible=_flexible(answer),
    )


def _flexible(answer: Answer) -> dict[str, tuple[bool, ...]]:
    """Marks by job id of those that hold GPUs, where a policy divided borrowed servers too."""
    if answer.flexible is None:
        return {}
    offsets, ids = answer.placements.offsets, answer.problem.columns.ids
    return {
        ids[row]: tuple(answer.flexible[offsets[row] : offsets[row + 1]].tolist())
        for row in rows_where(np.diff(offsets) > 0).tolist()
    }
