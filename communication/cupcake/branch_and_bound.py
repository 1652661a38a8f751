"""Algorithm 5.1, corrected: depth-first search with a bound and safe fusion.

It exists for fidelity and comparison with the exact program, which makes the plans: the search takes
exponential time when its prunings have no effect, and safe fusion is wrong for costs that are not affine.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from communication.cupcake.costs import AffineCost
from communication.cupcake.partitions import Boundaries, even_split
from communication.cupcake.problem import FusionProblem
from communication.cupcake.timeline import timeline_of
from communication.profiles.arrays import Floats

#: Even splits tried before the search, so that its bound is tight from the start.
FIRST_TRIED = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class Prunings:
    """The prunings in use.

    ``bound``: skip branches that cannot beat the best known partition (Pruning 1). ``safe_fusion``: skip
    groups that would wait for the network although they could be longer (Pruning 2). ``inexact``: allow the
    latter for costs that are not affine.
    """

    bound: bool = True
    safe_fusion: bool = True
    inexact: bool = False


@dataclass(frozen=True, slots=True)
class SearchAnswer:
    """The result. ``visited``: partial partitions. ``complete``: whether the search was exhaustive."""

    boundaries: Boundaries
    iteration_seconds: float
    visited: int
    complete: bool


@dataclass(slots=True)
class _Partial:
    """A partial partition: its next group begins at ``begin``, and its next boundary to try is ``end``."""

    begin: int
    end: int
    comp: float
    comm: float
    #: Lower bound for each boundary from ``begin`` + 1 on.
    bounds: Floats


def search(
    problem: FusionProblem,
    prunings: Prunings | None = None,
    *,
    first_tried: tuple[int, ...] = FIRST_TRIED,
    most_visited: int = 10_000_000,
) -> SearchAnswer:
    """Return the best partition that Algorithm 5.1 finds; of equally fast ones the first found.

    Raises ValueError for safe fusion with costs that are not affine, unless ``inexact`` is set.
    """
    rules = prunings or Prunings()
    affine = isinstance(problem.encode, AffineCost) and isinstance(problem.transfer, AffineCost)
    if rules.safe_fusion and not (rules.inexact or affine):
        raise ValueError(
            "Pruning 2 (safe fusion) is exact only for affine costs; use the exact program, or omit pruning 2"
        )
    tried = [even_split(problem.tensors, count) for count in first_tried] or [(problem.tensors,)]
    ends = [float(timeline_of(problem, one).sent_until[-1]) for one in tried]
    best, found = min(ends), tried[int(np.argmin(ends))]
    path = [_partial(problem, rules, 0, 0.0, 0.0)]
    visited = 0
    while path and visited < most_visited:
        here = path[-1]
        if here.end > problem.tensors:
            path.pop()
            continue
        end = here.end
        here.end += 1
        if rules.bound and here.bounds[end - here.begin - 1] >= best:
            continue
        visited += 1
        comp = here.comp + float(problem.work_table[here.begin, end])
        comm = max(comp, here.comm) + float(problem.transfer_table[here.begin, end])
        if end < problem.tensors:
            path.append(_partial(problem, rules, end, comp, comm))
        elif comm < best:
            best, found = comm, (*(one.begin for one in path[1:]), end)
    return SearchAnswer(found, problem.other_seconds + best, visited, not path)


def lower_bounds(problem: FusionProblem, begin: int, comp: float, comm: float) -> Floats:
    """Pruning 1: return a lower bound without A for partitions that continue with ``begin``..``end`` - 1, for
    each ``end`` from ``begin`` + 1 on.

    Either the rest's communication is hidden, or all of it is sent back to back in one group.
    """
    encoded = comp + problem.work_table[begin, begin + 1 :]
    sent = np.maximum(encoded, comm) + problem.transfer_table[begin, begin + 1 :]
    computed: Floats = encoded + problem.work_table[begin + 1 :, -1]
    return np.maximum(computed, sent + problem.transfer_table[begin + 1 :, -1])


def safe_end(problem: FusionProblem, begin: int, delay_seconds: float) -> int:
    """Pruning 2: return the first boundary to try for the group that begins at ``begin``.

    The group grows while its encoding ends before the network is free, ``delay_seconds`` after its begin.
    """
    late = np.flatnonzero(problem.work_table[begin, begin + 1 :] > delay_seconds)
    ready = int(late[0]) if late.size else problem.tensors - begin
    return begin + max(1, ready)


def _partial(problem: FusionProblem, rules: Prunings, begin: int, comp: float, comm: float) -> _Partial:
    first = safe_end(problem, begin, comm - comp) if rules.safe_fusion and begin > 0 else begin + 1
    return _Partial(begin, first, comp, comm, lower_bounds(problem, begin, comp, comm))
