"""Gandiva as ElasticFlow's published simulator runs it."""

from __future__ import annotations

from math import inf

from scheduling.core.problem.problem import Problem
from scheduling.core.question.snapshot import IntArray
from scheduling.policies.without_promises import Contest
from simulation.baselines.against_elasticflow.gandiva import TURN, Gandiva
from simulation.baselines.against_elasticflow.gandiva_sets import ServerSets, rebalance, rotate

ROTATION_SECONDS = 60


class GandivaArtifact(Gandiva):
    """Acts only when jobs arrive; turns change only where that happens at a whole minute.

    Source: the simulator behind figures 8 to 11 of ElasticFlow, taken from Tiresias. These properties are
    kept. Places of ended jobs stay idle until the next arrival (here until no job runs, since the policy
    cannot know of arrivals). All jobs pause at every planning instant. A job joins a set only while another
    place there stays free, else a new set, else the second least loaded set of its group. Ended jobs remain
    in the load. Servers move between groups by a count that takes sets for GPUs, so a group of small jobs
    gives up nearly all its sets at one arrival and gets them back at the next. Jobs are dealt anew at the
    wrong moments (`gandiva_sets`).
    """

    name = "gandiva_artifact"

    def _changed(self, problem: Problem, sets: ServerSets, field: Contest, sizes: IntArray) -> list[int]:
        if not self._looks(problem, field):
            return []
        if round(problem.next_slot_at) % ROTATION_SECONDS == 0:
            for server_set in sets.every():
                rotate(server_set, sets.server_gpus)
        for size in list(sets.groups):
            sets.groups[size] = [server_set for server_set in sets.groups[size] if server_set.jobs]
        for row in field.rows[problem.columns.memory[field.rows, TURN] == 0].tolist():
            _seat_as_published(sets, row, int(sizes[row]))
        rebalance(sets, as_published=True)
        return []

    def _running(self, problem: Problem, sets: ServerSets, field: Contest) -> list[int]:
        if self._looks(problem, field):
            return super()._running(problem, sets, field)
        running: list[int] = field.rows[problem.columns.gpus[field.rows] > 0].tolist()
        return running

    def _looks(self, problem: Problem, field: Contest) -> bool:
        """Whether a job waits that has no set yet, or no job runs."""
        arrived = bool((problem.columns.memory[field.rows, TURN] == 0).any())
        return arrived or not (problem.columns.gpus[field.rows] > 0).any()

    def _wake(self, problem: Problem, waiting: bool) -> float:
        return inf


def _seat_as_published(sets: ServerSets, row: int, size: int) -> None:
    """Add a job to a set, if one exists for it."""
    group = sets.group(size)
    chosen = None
    if group:
        lightest = group.pop(0)
        if lightest.load + 1.0 < lightest.places(sets.server_gpus):
            chosen = lightest
        else:
            group.append(lightest)
    if chosen is None:
        chosen = sets.opened(size) or (group.pop(0) if group else None)
    if chosen is None:
        return
    chosen.load += 1.0
    chosen.jobs.append(row)
    group.append(chosen)
    group.sort(key=lambda server_set: server_set.load)
