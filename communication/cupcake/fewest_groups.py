"""The partition with the fewest groups and the latest boundaries, of all equally fast ones.

Many partitions often end at the same time: with a slow network the grouping of waiting tensors does not
matter. Fewer groups mean fewer calls. The tie-breaking also makes the plan deterministic.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from communication.cupcake.partitions import Boundaries
from communication.cupcake.problem import FusionProblem
from communication.profiles.arrays import Floats, Integers

#: Relative tolerance for sums of the same times in different order.
ROUNDING = 1e-11
FrontierOf = Callable[[int], tuple[Floats, Floats]]


class _Endings:
    """Ways to complete a prefix, all with the same number of groups.

    A way is two times: ``sending`` of all its groups, and ``waiting`` from when the prefix is encoded, if the
    network were free then. After a prefix with comp and comm it ends at max(comm + sending, comp + waiting).
    ``begin``: length of the prefix, ascending; for each prefix, sending rises and waiting falls.
    """

    def __init__(self, begin: Integers, sending: Floats, waiting: Floats) -> None:
        self.begin, self.sending, self.waiting = begin, sending, waiting

    def best_end(self, begin: int, comp: float, comm: float) -> float:
        """Return when the best of them ends after a prefix; infinity if there is none."""
        low, high = np.searchsorted(self.begin, [begin, begin + 1])
        ends = np.maximum(comm + self.sending[low:high], comp + self.waiting[low:high])
        return float(ends.min(initial=np.inf))


def fewest_groups(problem: FusionProblem, frontier_of: FrontierOf, best: float) -> Boundaries:
    """Return the partition that ends its communication at ``best``, the optimum, with the fewest groups; of
    several the one with the latest boundaries, compared from the first on.

    ``frontier_of``: comp and comm of each prefix's Pareto frontier, used to skip endings that no prefix
    completes in time.
    """
    limit = best * (1.0 + ROUNDING)
    layers = [_Endings(np.array([problem.tensors]), np.zeros(1), np.zeros(1))]
    while layers[-1].best_end(0, 0.0, 0.0) > limit:
        layers.append(_one_group_more(problem, frontier_of, layers[-1], limit))
    comp = comm = 0.0
    begin, boundaries = 0, []
    for endings in reversed(layers[:-1]):
        for end in range(problem.tensors, begin, -1):
            encoded = comp + float(problem.work_table[begin, end])
            sent = max(encoded, comm) + float(problem.transfer_table[begin, end])
            if endings.best_end(end, encoded, sent) <= limit:
                break
        else:
            raise AssertionError("a partition that was found is not found again")
        boundaries.append(end)
        begin, comp, comm = end, encoded, sent
    return tuple(boundaries)


def _one_group_more(
    problem: FusionProblem, frontier_of: FrontierOf, endings: _Endings, limit: float
) -> _Endings:
    """Return the ways with one more group in front."""
    transfer, work = problem.transfer_table, problem.work_table
    begins: list[int] = []
    found: list[tuple[Floats, Floats]] = []
    for begin in range(int(endings.begin.max(initial=0))):
        low = int(np.searchsorted(endings.begin, begin + 1))
        ends = endings.begin[low:]
        sending = transfer[begin, ends] + endings.sending[low:]
        waiting = work[begin, ends] + np.maximum(endings.waiting[low:], sending)
        comp, comm = frontier_of(begin)
        # Of the points encoded early enough, the last is sent earliest.
        place = np.searchsorted(comp, limit - waiting, side="right") - 1
        in_time = (place >= 0) & (comm[np.maximum(place, 0)] + sending <= limit)
        sending, waiting = sending[in_time], waiting[in_time]
        if sending.size:
            order = np.lexsort((waiting, sending))
            least = np.concatenate(([np.inf], np.minimum.accumulate(waiting[order])[:-1]))
            order = order[waiting[order] < least]
            begins += [begin] * len(order)
            found.append((sending[order], waiting[order]))
    if not found:
        raise AssertionError("no partition is as fast as the best one")
    sends, waits = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return _Endings(np.array(begins, dtype=np.int64), sends, waits)
