"""The runtime's own process groups, and whether a connection of one is broken.

A collective that loses a peer raises a plain RuntimeError, like a function's own code, and often from within
that code: in DDP's hooks of the backward pass. The error's text therefore does not tell; the groups'
connections are probed. A failed gloo connection refuses every later send; on an intact one, a message that
is never received does no harm.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
import torch.distributed as dist

#: Tag of the probes, which are never received.
_TAG = (1 << 30) + 1
#: Time between two probes: a worker that ends loses its connections one after the other.
_LOOK_AGAIN_SECONDS = 0.05

_groups: list[dist.ProcessGroup] = []


def own(*groups: dist.ProcessGroup) -> None:
    """Note that the runtime has made these groups."""
    _groups.extend(group for group in groups if not is_owned(group))


def disown(*groups: dist.ProcessGroup) -> None:
    """Forget groups that are destroyed."""
    _groups[:] = [known for known in _groups if not any(known is group for group in groups)]


def is_owned(group: dist.ProcessGroup) -> bool:
    """Return whether the runtime made this group."""
    return any(known is group for known in _groups)


def use_nccl() -> bool:
    """Return whether any own group uses NCCL, whose connections cannot be probed."""
    return dist.is_nccl_available() and any(
        isinstance(backend, dist.ProcessGroupNCCL) for group in _groups for backend in _backends(group)
    )


def has_lost_a_peer(within_seconds: float = 0.0) -> bool:
    """Return whether a connection of any own group is broken, or breaks within `within_seconds`."""
    until = time.monotonic() + within_seconds
    while True:
        if any(_is_broken(group) for group in _groups):
            return True
        if time.monotonic() >= until:
            return False
        time.sleep(_LOOK_AGAIN_SECONDS)


def _is_broken(group: dist.ProcessGroup) -> bool:
    peers = [peer for peer in range(group.size()) if peer != group.rank()]
    for backend in _backends(group):
        if dist.is_nccl_available() and isinstance(backend, dist.ProcessGroupNCCL):
            continue
        for peer in peers:
            try:
                backend.send([torch.zeros(1)], peer, _TAG)
            except RuntimeError:
                return True
    return False


def _backends(group: dist.ProcessGroup) -> Iterator[dist.ProcessGroup]:
    """Yield the groups that carry a group's messages; for emulated links, the group beneath them."""
    carrier = getattr(group, "carrier", None)
    if carrier is not None:
        yield carrier
    elif group.size() > 1:
        yield from {id(backend): backend for backend in map(group._get_backend, group._device_types)}.values()
