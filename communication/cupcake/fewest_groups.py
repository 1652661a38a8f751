"""Of all partitions that are equally fast, the one with the fewest groups and the latest boundaries.

Many partitions often end at the same time: with a slow network it does not matter how what waits for it was
grouped. Fewer groups have fewer calls and less to go wrong; and whoever computes the plan gets the same one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from communication.cupcake.partitions import Boundaries
from communication.cupcake.problem import FusionProblem
from communication.profiles.arrays import Floats, Integers

#: Sums of the same times in another order differ by less than this share.
ROUNDING = 1e-11
FrontierOf = Callable[[int], tuple[Floats, Floats]]


class _Endings:
    """Ways to end from a prefix on, with one number of groups each.

    A way is two times: ``sending`` of all its groups, and ``waiting`` from the moment when the prefix is
    encoded, were the network free then. After a prefix with comp and comm it ends at max(comm + sending,
    comp + waiting). ``begin``: the length of the prefix, ascending; within one, sending rises and waiting
    falls.
    """

    def __init__(self, begin: Integers, sending: Floats, waiting: Floats) -> None:
        self.begin, self.sending, self.waiting = begin, sending, waiting

    def best_end(self, begin: int, comp: float, comm: float) -> float:
        """When the best of them ends after a prefix; infinity where there is none."""
        low, high = np.searchsorted(self.begin, [begin, begin + 1])
        ends = np.maximum(comm + self.sending[low:high], comp + self.waiting[low:high])
        return float(ends.min(initial=np.inf))


def fewest_groups(problem: FusionProblem, frontier_of: FrontierOf, best: float) -> Boundaries:
    """The partition that ends its communication at ``best``, the least there is, with the fewest groups; of
    several the one whose boundaries are latest, from the first on.

    ``frontier_of``: comp and comm of the Pareto frontier of each prefix, with which only endings that some
    prefix completes in time are followed.
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
    """The ways with another group before those that there are."""
    transfer, work = problem.transfer_table, problem.work_table
    begins: list[int] = []
    found: list[tuple[Floats, Floats]] = []
    for begin in range(int(endings.begin.max(initial=0))):
        low = int(np.searchsorted(endings.begin, begin + 1))
        ends = endings.begin[low:]
        sending = transfer[begin, ends] + endings.sending[low:]
        waiting = work[begin, ends] + np.maximum(endings.waiting[low:], sending)
        comp, comm = frontier_of(begin)
        # The last point of the frontier that is encoded early enough is the one that is sent earliest.
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
