"""What links carry between a measurement's ranks, while nothing else of the job is on them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
import torch.distributed as dist

from communication.espresso.options import Level
from communication.hooks.device_time import courses_of
from communication.hooks.groups import PlacementGroups
from communication.profiles.placement import PlacementShape

#: That tell the latency of a call.
SMALL_BYTES = 1 << 12
#: What tells the rate is sent in ever larger calls, until one takes so long or is so large.
FIRST_BYTES, LARGEST_BYTES = 1 << 17, 1 << 25
LONG_SECONDS = 0.05
SMALL_CALLS, LARGE_CALLS = 8, 4


def link_fields(
    servers: Sequence[int], group: dist.ProcessGroup | None, device: torch.device
) -> dict[str, dict[str, float]]:
    """Latency of a call and bytes per second: `between` servers, of one server's network interface, and
    `within` one, of a GPU. A record tells them so; what there is not is left out.

    All ranks of a group call this together. ``servers``: of each of them. ``device``: whose gradients they
    exchange. Ranks that are unevenly spread have no plan, and nothing is measured.
    """
    shape = shape_of(servers)
    if shape is None or shape.workers == 1:
        return {}
    groups = PlacementGroups.open(shape, group, [(Level.INTER, False), (Level.INTRA, False)])
    found = {}
    for name, level, sharers in (
        ("between", Level.INTER, shape.gpus_per_server),
        ("within", Level.INTRA, 1),
    ):
        one = groups.by_step.get((level, False))
        if one is not None:
            found[name] = _rate(one, group, sharers, device)
    groups.close()
    return found


def shape_of(servers: Sequence[int]) -> PlacementShape | None:
    """Servers with as many ranks each, which follow one another; None of others."""
    runs = [len(list(run)) for _, run in groupby(servers)]
    if len(runs) != len(set(servers)) or len(set(runs)) != 1:
        return None
    return PlacementShape(len(runs), runs[0])


def _rate(
    group: dist.ProcessGroup, everybody: dist.ProcessGroup | None, sharers: int, device: torch.device
) -> dict[str, float]:
    """``sharers``: groups that exchange over the same link at once."""
    small = _seconds(SMALL_BYTES, SMALL_CALLS, group, everybody, device)
    size = FIRST_BYTES
    while (large := _seconds(size, LARGE_CALLS, group, everybody, device)) < LONG_SECONDS:
        if size >= LARGEST_BYTES:
            break
        size *= 2
    received = (group.size() - 1) * sharers
    rate = received * (size - SMALL_BYTES) / max(large - small, 1e-9)
    return {
        "latency_seconds": max(0.0, small - received * SMALL_BYTES / rate),
        "bytes_per_second": rate,
    }


def _seconds(
    size: int,
    calls: int,
    group: dist.ProcessGroup,
    everybody: dist.ProcessGroup | None,
    device: torch.device,
) -> float:
    """Of an all-gather of so many bytes from each rank, one of several: the same on all ranks.

    They begin at the end of a sum over all ranks, so at about the same time: others share the link all along.
    """
    mine = torch.zeros(size, dtype=torch.uint8, device=device)
    gathered = mine.new_empty(size * group.size())
    course = courses_of(group)()
    course.goes_on()
    dist.all_reduce(torch.zeros(1), group=everybody)
    course.asked()
    course.came()
    begun = course.at
    for _ in range(calls):
        dist.all_gather_single(gathered, mine, group=group)
        course.asked()
        course.came()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    taken = torch.tensor([course.at - begun], dtype=torch.float64)
    dist.all_reduce(taken, group=everybody)
    return float(taken) / calls / dist.get_world_size(everybody)
