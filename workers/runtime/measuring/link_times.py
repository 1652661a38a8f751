"""Latency and bandwidth of the links between a measurement's ranks, while the job sends nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
import torch.distributed as dist

from communication.espresso.options import Level
from communication.hooks.device_time import courses_of
from communication.hooks.groups import PlacementGroups
from communication.profiles.placement import PlacementShape

#: Size of the calls that measure latency.
SMALL_BYTES = 1 << 12
#: The calls that measure the rate double in size until one takes LONG_SECONDS or has LARGEST_BYTES.
FIRST_BYTES, LARGEST_BYTES = 1 << 17, 1 << 25
LONG_SECONDS = 0.05
SMALL_CALLS, LARGE_CALLS = 8, 4


def link_fields(
    servers: Sequence[int], group: dist.ProcessGroup | None, device: torch.device
) -> dict[str, dict[str, float]]:
    """Return latency of a call and bytes per second, as in a record: `between` servers, of a server's network
    interface, and `within` a server, of a GPU. Links that do not exist are left out.

    All ranks of a group call this together. Ranks spread unevenly have no plan, so nothing is measured.

    Args:
        servers: the server of each rank.
        device: the device of the gradients that they exchange.
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
    """Return the shape of consecutive ranks, equally many on each server; None for any other placement."""
    runs = [len(list(run)) for _, run in groupby(servers)]
    if len(runs) != len(set(servers)) or len(set(runs)) != 1:
        return None
    return PlacementShape(len(runs), runs[0])


def _rate(
    group: dist.ProcessGroup, everybody: dist.ProcessGroup | None, sharers: int, device: torch.device
) -> dict[str, float]:
    """Measure latency and rate.

    Args:
        sharers: number of groups that exchange over the same link at once.
    """
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
    """Return the mean seconds of an all-gather of `size` bytes from each rank: the same on all ranks.

    The calls begin after a sum over all ranks, so at about the same time in all groups that share a link.
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
