"""The exact program: the best of all partitions for arbitrary encoding and sending costs.

The future of a prefix of the tensors depends only on its length and two times: when it is encoded (comp) and
when it is sent (comm); later is never better. So only partitions that no other of the same length beats in
both are kept: the Pareto frontier, which has some tens of points for hundreds of tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from communication.cupcake.fewest_groups import fewest_groups
from communication.cupcake.partitions import Boundaries
from communication.cupcake.problem import FusionProblem
from communication.cupcake.timeline import iteration_seconds
from communication.profiles.arrays import Floats, Integers


@dataclass(frozen=True, slots=True)
class FusionAnswer:
    """A partition with the smallest iteration time; ties go to fewer groups, then to later boundaries,
    compared from the first on.

    ``points``: total size of all frontiers.
    """

    boundaries: Boundaries
    iteration_seconds: float
    points: int


@dataclass(frozen=True, eq=False)
class Frontiers:
    """The frontier of each prefix: comp rises and comm falls along it.

    ``begins``: start of the first k tensors' frontier in `comp` and `comm`, k = 0..N + 1. ``before``: the
    point of a shorter prefix from which a point was made.
    """

    comp: Floats
    comm: Floats
    before: Integers
    begins: Integers

    def of(self, length: int) -> tuple[Floats, Floats]:
        """Return comp and comm of the prefix of this length."""
        part = slice(int(self.begins[length]), int(self.begins[length + 1]))
        return self.comp[part], self.comm[part]


def best_fusion(problem: FusionProblem) -> FusionAnswer:
    """Return the best partition. Each tensor extends all points found before: tens of milliseconds for
    hundreds of tensors."""
    frontiers = pareto_frontiers(problem)
    best = float(frontiers.of(problem.tensors)[1][-1])
    boundaries = fewest_groups(problem, frontiers.of, best)
    return FusionAnswer(boundaries, iteration_seconds(problem, boundaries), len(frontiers.comp))


def pareto_frontiers(problem: FusionProblem) -> Frontiers:
    """Return the frontiers of all prefixes, including the empty one."""
    work, transfer, tensors = problem.work_table, problem.transfer_table, problem.tensors
    # For each point: its times, the length of its prefix, and its predecessor.
    comp, comm = np.zeros(16 * tensors + 1), np.zeros(16 * tensors + 1)
    length, before = np.zeros((2, 16 * tensors + 1), dtype=np.int64)
    begins = np.zeros(tensors + 2, dtype=np.int64)
    count = begins[1] = 1
    for end in range(1, tensors + 1):
        begin = length[:count]
        encoded = comp[:count] + work[begin, end]
        sent = np.maximum(encoded, comm[:count]) + transfer[begin, end]
        kept = not_dominated(encoded, sent)
        more = count + len(kept)
        if more > len(comp):
            comp, comm = (np.concatenate((one, one)) for one in (comp, comm))
            length, before = (np.concatenate((one, one)) for one in (length, before))
        comp[count:more], comm[count:more] = encoded[kept], sent[kept]
        length[count:more], before[count:more] = end, kept
        count = begins[end + 1] = more
    return Frontiers(comp[:count], comm[:count], before[:count], begins)


def not_dominated(first: Floats, second: Floats) -> Integers:
    """Return the pairs that no other pair beats or equals in both, by rising ``first``; ties: the first."""
    # Sorting dominates the time, so first drop all pairs that one good pair beats.
    good = int(np.argmin(first + second))
    left = np.flatnonzero((first <= first[good]) | (second <= second[good]))
    order = left[np.lexsort((second[left], first[left]))]
    values = second[order]
    lowest_before = np.concatenate(([np.inf], np.minimum.accumulate(values)[:-1]))
    kept: Integers = order[values < lowest_before]
    return kept
