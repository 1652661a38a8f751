"""Small hand-made timelines, and a second engine to which the first is compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from communication.espresso.chains import Chains
from communication.espresso.choices import Choices
from communication.espresso.operations import Resource
from communication.espresso.timeline import TimelineEngine

GPU, CPU, WITHIN, BETWEEN = Resource.GPU, Resource.CPU, Resource.WITHIN, Resource.BETWEEN
Chain = Sequence[tuple[Resource, float]]
"""Operations of one option for one tensor."""


def engine_of(gaps: Sequence[float], chains: Sequence[Sequence[Chain]], **others: Any) -> TimelineEngine:
    """Return an engine for tensors with their own chains: ``chains[tensor][option]``. An option occupies the
    same resources for all tensors."""
    options = len(chains[0])
    longest = max(1, *(len(chain) for chains_of_tensor in chains for chain in chains_of_tensor))
    resources = np.zeros((options, longest), dtype=np.int64)
    lengths = np.zeros(options, dtype=np.int64)
    seconds = np.zeros((len(chains), options, longest))
    for tensor, chains_of_tensor in enumerate(chains):
        for option, chain in enumerate(chains_of_tensor):
            lengths[option] = len(chain)
            for number, (resource, duration) in enumerate(chain):
                resources[option, number] = resource
                seconds[tensor, option, number] = duration
    table = Chains(resources, lengths, seconds)
    return TimelineEngine(table, np.arange(len(chains)), np.array(gaps), **others)


def plain_end(engine: TimelineEngine, strategy: Sequence[int], cpu_servers: int = 1) -> float:
    """Return the end of an iteration by simulating queues: at each completion, idle resources start the first
    ready operation of their queue. Slow, but written from the rules, independently of the engine."""
    tables = engine.tables
    tensors = len(engine)
    servers = dict.fromkeys(Resource, 1) | {CPU: cpu_servers}
    queues: dict[Resource, list[tuple[float, int, int]]] = {resource: [] for resource in Resource}
    running: list[tuple[float, Resource, int, int]] = []
    queues[GPU].append((0.0, tensors, 0))
    now = 0.0
    while True:
        for resource in Resource:
            queues[resource].sort()
            busy = sum(operation[1] is resource for operation in running)
            while queues[resource] and busy < servers[resource]:
                _, tensor, number = queues[resource].pop(0)
                duration = (
                    tables.gaps[number]
                    if tensor == tensors
                    else tables.seconds[tables.size_of[tensor], strategy[tensor], number]
                )
                running.append((now + duration, resource, tensor, number))
                busy += 1
        if not running:
            return now
        now = min(end for end, *_ in running)
        for done in [operation for operation in running if operation[0] == now]:
            running.remove(done)
            for tensor, number in _followers(done[2], done[3], tensors, tables.lengths, strategy):
                resource = (
                    GPU if tensor == tensors else Resource(int(tables.resources[strategy[tensor], number]))
                )
                queues[resource].append((now, tensor, number))


def _followers(
    tensor: int, number: int, tensors: int, lengths: np.ndarray, strategy: Sequence[int]
) -> list[tuple[int, int]]:
    if tensor < tensors:
        return [(tensor, number + 1)] if number + 1 < lengths[strategy[tensor]] else []
    begun = [(number, 0)] if lengths[strategy[number]] else []
    return [*begun, (tensors, number + 1)] if number + 1 < tensors else begun


def gaps_of_channel(engine: TimelineEngine, strategy: np.ndarray) -> list[tuple[float, float]]:
    """Return the times at which the links are idle between two exchanges."""
    spans = sorted(
        (span.start, span.end) for span in engine.spans(strategy) if span.resource in (WITHIN, BETWEEN)
    )
    gaps = []
    until = spans[0][1]
    for start, end in spans:
        if start > until:
            gaps.append((until, start))
        until = max(until, end)
    return gaps


NONE, ON_GPU, ON_CPU = 0, 1, 2


def compressible(
    plain: float, gpu: float, cpu: float, compressed: float, decode: float | None = None
) -> list[Chain]:
    """Return a tensor uncompressed, compressed on the GPU, and compressed on the CPU, over one channel.
    Without ``decode`` nothing is decoded."""
    behind = {device: [] if decode is None else [(device, decode)] for device in (GPU, CPU)}
    return [
        [(BETWEEN, plain)],
        [(GPU, gpu), (BETWEEN, compressed), *behind[GPU]],
        [(CPU, cpu), (BETWEEN, compressed), *behind[CPU]],
    ]


def choices_of(engine: TimelineEngine, sizes: Sequence[int]) -> Choices:
    """Return the algorithms' input for tensors that may be compressed on the GPU or on the CPU."""
    return Choices(
        engine,
        np.array(sizes, dtype=np.int64),
        engine.tables.size_of,
        np.array([0, 1, 1], dtype=np.int64),
        np.array([-1, ON_CPU, -1], dtype=np.int64),
    )
