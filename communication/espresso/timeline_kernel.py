"""The timeline engine, event by event (Espresso 4.3).

Operations of a chain run in sequence. Backward operations form a chain of their own on the GPU, and each
starts its tensor's chain when it ends. A resource serves in order of ready time. So it suffices to take
operations in that order, and to start each once it is ready and its resource is free: no operation taken
later can precede it. Ties: operations of chains before the next backward operation, then lower tensors. All
completions at one time are processed before any operation that becomes ready then.

The caller provides all arrays, so that trying strategies allocates nothing.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from communication.espresso.operations import Resource
from kernels.compiling import kernel, leaf

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]


class Tables(NamedTuple):
    """The options of each tensor.

    ``lengths``, ``resources``: of each option's chain. ``first_exchange``: the number of its first exchange,
    or -1. ``seconds``: by size, option and operation. ``totals``: by size, option and resource. ``size_of``:
    the row of each tensor's size. ``gaps``: seconds of each backward operation.
    """

    lengths: Integers
    first_exchange: Integers
    resources: Integers
    seconds: Floats
    totals: Floats
    size_of: Integers
    gaps: Floats


class State(NamedTuple):
    """A run between two operations.

    ``ready``, ``who``, ``stage``: the waiting operations as a heap, the next one at 0. ``who``: the tensor,
    or the number of tensors for a backward operation, whose tensor is its ``stage``. ``free``: when each
    resource is next free. ``cpu_free``: the same for each of the processors' servers. ``remaining``: seconds
    of work not yet started on each resource.
    """

    ready: Floats
    who: Integers
    stage: Integers
    free: Floats
    cpu_free: Floats
    remaining: Floats


class Record(NamedTuple):
    """The record of a run. ``starts``, ``ends``: by tensor and operation, backward operations last; without
    rows if not needed. ``bubble``: one number, the last tensor before which there is a bubble."""

    starts: Floats
    ends: Floats
    bubble: Integers


GPU = int(Resource.GPU)
CPU = int(Resource.CPU)
WITHIN = int(Resource.WITHIN)
BETWEEN = int(Resource.BETWEEN)
EQUAL_SECONDS = 1e-9
"""Iterations that differ by less are considered equal."""
AT_ONCE_SECONDS = 1e-12
"""Tolerance for sums of the same times in different order."""


@leaf
def push(state: State, size: int, at: float, tensor: int, number: int) -> int:
    """Add a waiting operation; return the number of waiting operations."""
    ready, who, stage = state.ready, state.who, state.stage
    place = size
    while place > 0:
        above = (place - 1) // 2
        if ready[above] < at or (ready[above] == at and who[above] <= tensor):
            break
        ready[place], who[place], stage[place] = ready[above], who[above], stage[above]
        place = above
    ready[place], who[place], stage[place] = at, tensor, number
    return size + 1


@leaf
def drop_first(state: State, size: int) -> int:
    """Remove the first waiting operation; return the number of waiting operations."""
    ready, who, stage = state.ready, state.who, state.stage
    size -= 1
    at, tensor, number = ready[size], who[size], stage[size]
    place = 0
    while True:
        below = 2 * place + 1
        if below >= size:
            break
        right = below + 1
        if right < size and (
            ready[right] < ready[below] or (ready[right] == ready[below] and who[right] < who[below])
        ):
            below = right
        if at < ready[below] or (at == ready[below] and tensor < who[below]):
            break
        ready[place], who[place], stage[place] = ready[below], who[below], stage[below]
        place = below
    ready[place], who[place], stage[place] = at, tensor, number
    return size


@leaf
def serve(state: State, resource: int, ready: float, seconds: float) -> tuple[float, float]:
    """Schedule an operation on a resource; return its start and end."""
    free, cpu_free, remaining = state.free, state.cpu_free, state.remaining
    remaining[resource] -= seconds
    if resource != CPU:
        start = max(ready, free[resource])
        free[resource] = start + seconds
        return start, start + seconds
    first = 0
    for server in range(1, cpu_free.size):
        if cpu_free[server] < cpu_free[first]:
            first = server
    start = max(ready, cpu_free[first])
    cpu_free[first] = start + seconds
    return start, start + seconds


@leaf
def earliest_end(state: State) -> float:
    """Return a lower bound on the end of any run from here: each resource has to do its remaining work."""
    free, cpu_free, remaining = state.free, state.cpu_free, state.remaining
    found = free[GPU] + remaining[GPU]
    for resource in (WITHIN, BETWEEN):
        found = max(found, free[resource] + remaining[resource])
    processors = remaining[CPU]
    for server in range(cpu_free.size):
        processors += cpu_free[server]
    return float(max(found, processors / cpu_free.size))


@leaf
def advance(
    tables: Tables,
    choice: Integers,
    state: State,
    size: int,
    stop: int,
    limit: float,
    record: Record,
) -> tuple[float, int]:
    """Serve waiting operations until none is left, or the backward operation of tensor ``stop`` is next.

    Args:
        choice: the option of each tensor.
        limit: the run is abandoned with an infinite end once it cannot end before.
        record: receives the bubble, starts and ends.

    Returns:
        The last end of served operations, and the number of waiting ones.
    """
    lengths, first_exchange, gaps = tables.lengths, tables.first_exchange, tables.gaps
    free, remaining = state.free, state.remaining
    starts, ends = record.starts, record.ends
    tensors = gaps.size
    last = 0.0
    while size > 0:
        at, tensor, number = state.ready[0], state.who[0], state.stage[0]
        if tensor == tensors:
            if number == stop:
                break
            size = drop_first(state, size)
            start, end = serve(state, GPU, at, gaps[number])
            if lengths[choice[number]] > 0:
                size = push(state, size, end, number, 0)
            if number + 1 < tensors:
                size = push(state, size, end, tensors, number + 1)
            resource = GPU
        else:
            size = drop_first(state, size)
            option = choice[tensor]
            resource = tables.resources[option, number]
            if number == first_exchange[option] and max(free[WITHIN], free[BETWEEN]) <= at + AT_ONCE_SECONDS:
                record.bubble[0] = max(record.bubble[0], tensor)
            start, end = serve(state, resource, at, tables.seconds[tables.size_of[tensor], option, number])
            if number + 1 < lengths[option]:
                size = push(state, size, end, tensor, number + 1)
        last = max(last, end)
        if resource != CPU and free[resource] + remaining[resource] > limit:
            return np.inf, size
        if starts.shape[0] > 0:
            starts[tensor, number], ends[tensor, number] = start, end
    return last, size


@leaf
def begin(tables: Tables, choice: Integers, state: State) -> int:
    """Set the state before an iteration: the first backward operation waits, and all work remains."""
    size_of, gaps, totals = tables.size_of, tables.gaps, tables.totals
    free, cpu_free, remaining = state.free, state.cpu_free, state.remaining
    free[:] = 0.0
    cpu_free[:] = 0.0
    remaining[:] = 0.0
    for tensor in range(size_of.size):
        remaining[GPU] += gaps[tensor]
        for resource in range(remaining.size):
            remaining[resource] += totals[size_of[tensor], choice[tensor], resource]
    return push(state, 0, 0.0, size_of.size, 0)


@leaf
def whole_run(
    tables: Tables,
    choice: Integers,
    state: State,
    limit: float,
    record: Record,
) -> float:
    """Return the end of an iteration under a strategy; infinite if it is after ``limit``."""
    size = begin(tables, choice, state)
    if earliest_end(state) > limit:
        return np.inf
    return advance(tables, choice, state, size, -1, limit, record)[0]


@leaf
def copy_state(source: State, target: State, size: int) -> None:
    """Copy a state with ``size`` waiting operations."""
    for place in range(size):
        target.ready[place] = source.ready[place]
        target.who[place] = source.who[place]
        target.stage[place] = source.stage[place]
    for resource in range(source.free.size):
        target.free[resource] = source.free[resource]
        target.remaining[resource] = source.remaining[resource]
    for server in range(source.cpu_free.size):
        target.cpu_free[server] = source.cpu_free[server]


@leaf
def best_candidate(
    tables: Tables,
    choice: Integers,
    states: tuple[State, State],
    tensor: int,
    candidates: Integers,
    current: float,
    record: Record,
) -> tuple[int, float]:
    """Return the candidate with which an iteration ends earliest, other tensors unchanged. Ties: the current.

    Everything before the tensor is ready is the same for all candidates and is served once.

    Args:
        candidates: columns of options, in tie-breaking order.
        current: the end of the current iteration. record: without rows.

    Returns:
        The column, and the end.
    """
    before, running = states
    totals = tables.totals
    own = choice[tensor]
    row = tables.size_of[tensor]
    size = begin(tables, choice, before)
    reached, size = advance(tables, choice, before, size, tensor, np.inf, record)
    best, best_end = own, current
    for candidate in candidates:
        if candidate == own:
            continue
        copy_state(before, running, size)
        for resource in range(totals.shape[2]):
            running.remaining[resource] += totals[row, candidate, resource] - totals[row, own, resource]
        limit = best_end - EQUAL_SECONDS + AT_ONCE_SECONDS
        if max(reached, earliest_end(running)) > limit:
            continue
        choice[tensor] = candidate
        end = max(reached, advance(tables, choice, running, size, -1, limit, record)[0])
        if end < best_end - EQUAL_SECONDS:
            best, best_end = candidate, end
    choice[tensor] = own
    return best, best_end


@kernel
def best_vector(
    tables: Tables,
    choice: Integers,
    state: State,
    groups: tuple[Integers, Integers, Integers],
    most: Integers,
    current: float,
    record: Record,
) -> tuple[Integers, float, int]:
    """Return the best numbers of offloaded tensors per group, over all vectors up to ``most`` (Algorithm
    4.2).

    Args:
        groups: tensors by group, in order of offloading; where each group begins, and the end; in that order,
            the column of each tensor's option on the CPU.
        current: the end of the iteration without offloading.

    Returns:
        The vector, the end with it, and the number tried. Ties: fewer offloads, then the first.
    """
    members, begins, columns = groups
    vector = np.zeros(most.size, dtype=np.int64)
    best = vector.copy()
    best_end, best_count, tried = current, 0, 1
    own = choice.copy()
    while True:
        place = most.size - 1
        while place >= 0 and vector[place] == most[place]:
            vector[place] = 0
            for member in range(begins[place], begins[place] + most[place]):
                choice[members[member]] = own[members[member]]
            place -= 1
        if place < 0:
            break
        member = begins[place] + vector[place]
        choice[members[member]] = columns[member]
        vector[place] += 1
        tried += 1
        end = whole_run(tables, choice, state, best_end + EQUAL_SECONDS, record)
        count = vector.sum()
        if end < best_end - EQUAL_SECONDS or (abs(end - best_end) <= EQUAL_SECONDS and count < best_count):
            best[:] = vector
            best_end, best_count = end, count
    choice[:] = own
    return best, best_end, tried
