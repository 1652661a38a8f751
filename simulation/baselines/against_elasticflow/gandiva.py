"""Gandiva: jobs of one size share servers and take turns on them.

Xiao et al., "Gandiva: Introspective Cluster Scheduling for Deep Learning" (OSDI 2018), section 3
(time-slicing on servers of one affinity), as simulated for Tiresias and ElasticFlow.
"""

from __future__ import annotations

from math import inf

import numpy as np

from scheduling.core.problem.answer import Answer
from scheduling.core.problem.problem import Problem
from scheduling.core.question.arrays import TIME_TOLERANCE
from scheduling.core.question.snapshot import FloatArray, IntArray
from scheduling.policies.dispatching import answer_with_sizes, requested_sizes, take_all
from scheduling.policies.without_promises import Contest, WithoutPromises, contest
from simulation.baselines.against_elasticflow.gandiva_sets import (
    ServerSet,
    ServerSets,
    add_in_order,
    rebalance,
    rotate,
)
from simulation.baselines.against_elasticflow.requests import at_sizes
from simulation.baselines.against_elasticflow.size_kernels import fitting_in_order

SET, TURN = 0, 1
TURN_PAUSES = 2.0
"""The least length of a turn in pauses. Jobs would make no progress in turns as short as a pause."""


class Gandiva(WithoutPromises):
    """Time-slicing: at every slot, the jobs of a set that ran queue behind those that waited.

    Deviations from the published simulation: turns change at every slot (later only where the pause exceeds
    half a slot) instead of at instants that happen to be whole minutes; the load of a set is the number of
    its present jobs; a set is full when all its places are taken; servers move between groups in whole sets.
    As in that simulation, Gandiva's packing of several jobs on one GPU and its migration by profiled affinity
    are left out.
    """

    name = "gandiva"
    any_measured_size = True
    memory_columns = ("set", "turn")

    def reallocate(self, problem: Problem) -> Answer:
        """Change turns, add jobs to sets, move servers between groups, and run the first jobs of each set."""
        verdicts = take_all(problem)
        field = contest(problem)
        sizes = requested_sizes(problem)
        sets = _recalled(problem, field, sizes)
        homeless = self._changed(problem, sets, field, sizes)
        wanted = field.kept
        running = self._running(problem, sets, field)
        fitting_in_order(np.array(running, dtype=np.int64), sizes, field.gpus, wanted)
        waiting = bool(homeless) or any(
            len(server_set.jobs) > server_set.places(sets.server_gpus) for server_set in sets.every()
        )
        return answer_with_sizes(
            problem, verdicts, wanted, job_memory=_remembered(problem, sets),
            cluster_memory=sets.remembered(), next_wake_at=self._wake(problem, waiting),
        )  # fmt: skip

    def _changed(self, problem: Problem, sets: ServerSets, field: Contest, sizes: IntArray) -> list[int]:
        """Update the sets in place. Returns the jobs for which no set has room."""
        for size in list(sets.groups):
            group = [server_set for server_set in sets.groups[size] if server_set.jobs]
            for server_set in group:
                server_set.load = float(len(server_set.jobs))
            sets.groups[size] = sorted(group, key=lambda server_set: server_set.load)
        self._rotate(problem, sets, sizes)
        seated = {row for server_set in sets.every() for row in server_set.jobs}
        newcomers = [row for row in field.rows.tolist() if row not in seated]
        homeless = [row for row in newcomers if not _seated(sets, row, int(sizes[row]))]
        rebalance(sets)
        return [row for row in homeless if not _seated(sets, row, int(sizes[row]))]

    def _rotate(self, problem: Problem, sets: ServerSets, sizes: IntArray) -> None:
        """Change turns where the present turn lasted long enough."""
        pauses = at_sizes(problem, problem.jobs.pause, sizes)
        for server_set in sets.every():
            turn = max(problem.slot, TURN_PAUSES * float(pauses[server_set.jobs].max(initial=0.0)))
            if problem.next_slot_at >= server_set.turned_at + turn - TIME_TOLERANCE:
                rotate(server_set, sets.server_gpus)
                server_set.turned_at = problem.next_slot_at

    def _running(self, problem: Problem, sets: ServerSets, field: Contest) -> list[int]:
        """The jobs whose turn it is, set by set."""
        return [row for server_set in sets.every() for row in server_set.running(sets.server_gpus)]

    def _wake(self, problem: Problem, waiting: bool) -> float:
        """The next slot while any job waits for its turn."""
        return problem.next_slot_at + problem.slot if waiting else inf


def _seated(sets: ServerSets, row: int, size: int) -> bool:
    """Add a job to the least loaded set, or to a new set if that is full and servers are free."""
    group = sets.group(size)
    chosen: ServerSet | None = None
    if not group or group[0].load >= group[0].places(sets.server_gpus):
        chosen = sets.opened(size)
    if chosen is None:
        if not group:
            return False
        chosen = group.pop(0)
    chosen.jobs.append(row)
    chosen.load += 1.0
    add_in_order(group, chosen)
    return True


def _recalled(problem: Problem, field: Contest, sizes: IntArray) -> ServerSets:
    """The sets of the last decision with those of their jobs that have not ended."""
    server_gpus = int(problem.blocks.size.max(initial=1))
    sets, numbered = ServerSets.recalled(problem.cluster_memory, server_gpus, problem.gpus // server_gpus)
    memory = problem.columns.memory
    rows = field.rows[memory[field.rows, SET] > 0]
    for row in rows[np.argsort(memory[rows, TURN], kind="stable")].tolist():
        home = int(memory[row, SET]) - 1
        if home < len(numbered) and numbered[home].job_gpus == sizes[row]:
            numbered[home].jobs.append(row)
    while sets.free_servers < 0:
        largest = max((group for group in sets.groups.values() if group), key=lambda group: group[0].servers)
        largest.pop(0)
    return sets


def _remembered(problem: Problem, sets: ServerSets) -> FloatArray:
    memory = np.zeros((problem.count, 2))
    for number, server_set in enumerate(sets.every()):
        memory[server_set.jobs, SET] = number + 1
        memory[server_set.jobs, TURN] = 1 + np.arange(len(server_set.jobs))
    return memory
