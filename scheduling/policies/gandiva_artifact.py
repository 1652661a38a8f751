"""Gandiva as ElasticFlow's published simulator runs it."""

from __future__ import annotations

from math import inf

from scheduling.core.problem import Problem
from scheduling.core.snapshot import IntArray
from scheduling.policies.gandiva import Gandiva
from scheduling.policies.gandiva_sets import ServerSets, rebalance, rotate
from scheduling.policies.without_promises import Contest

ROTATION_SECONDS = 60


class GandivaArtifact(Gandiva):
    """Turns change only at instants that are whole minutes, which is rare; a set's load never falls.

    Source: the simulator behind figures 8 to 11 of ElasticFlow, itself from Tiresias. Kept from it: a job is given to a set
    only while one of its places stays free, else to a new set, else to the second least loaded set of its group; jobs
    that end leave their weight in the load; groups below their share deal their jobs afresh at the wrong moments
    (`gandiva_sets._expand`), which changes turns far more often than the rotation does.
    """

    name = "gandiva_artifact"

    def _changed(self, problem: Problem, sets: ServerSets, field: Contest, sizes: IntArray) -> list[int]:
        if round(problem.next_slot_at) % ROTATION_SECONDS == 0:
            rotate(sets)
        for size in list(sets.groups):
            sets.groups[size] = [one for one in sets.groups[size] if one.jobs]
        seated = {row for one in sets.every() for row in one.jobs}
        newcomers = [row for row in field.rows.tolist() if row not in seated]
        homeless = [row for row in newcomers if not _seated_as_published(sets, row, int(sizes[row]))]
        rebalance(sets, as_published=True)
        return homeless

    def _wake(self, problem: Problem, waiting: bool) -> float:
        return inf


def _seated_as_published(sets: ServerSets, row: int, size: int) -> bool:
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
        return False
    chosen.load += 1.0
    chosen.jobs.append(row)
    group.append(chosen)
    group.sort(key=lambda one: one.load)
    return True
