"""Process groups of the runtime's own, and whether a connection of one is broken.

A collective that loses a peer raises a plain RuntimeError, as a function's own code may, and in the middle of
that code: in DDP's hooks of the backward pass. So the groups are asked, and not the error's words. A gloo
connection that has failed refuses whatever is sent on it from then on; on a sound one a message that nobody
receives does no harm.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
import torch.distributed as dist

#: Of messages that nobody receives.
_TAG = (1 << 30) + 1
#: A worker that ends loses its connections one after the other.
_LOOK_AGAIN_SECONDS = 0.05

_groups: list[dist.ProcessGroup] = []


def own(*groups: dist.ProcessGroup) -> None:
    """Note that the runtime has made these groups."""
    _groups.extend(group for group in groups if not is_owned(group))


def disown(*groups: dist.ProcessGroup) -> None:
    """Forget groups that are taken down."""
    _groups[:] = [known for known in _groups if not any(known is group for group in groups)]


def is_owned(group: dist.ProcessGroup) -> bool:
    """Whether the runtime made this group."""
    return any(known is group for known in _groups)


def use_nccl() -> bool:
    """Whether collectives of any own group are NCCL's, whose connections nobody can ask about."""
    return dist.is_nccl_available() and any(
        isinstance(backend, dist.ProcessGroupNCCL) for group in _groups for backend in _backends(group)
    )


def has_lost_a_peer(within_seconds: float = 0.0) -> bool:
    """Whether a connection of any own group is broken, or breaks within so long."""
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
    """What carries a group's messages; of one over emulated links the group beneath it."""
    carrier = getattr(group, "carrier", None)
    if carrier is not None:
        yield carrier
    elif group.size() > 1:
        yield from {id(backend): backend for backend in map(group._get_backend, group._device_types)}.values()
