"""Sums of gradients over the hosts of an expert, each of which computes the rows of some ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from communication.hooks.groups import open_subgroup
from emulated_links.rates import GRADIENTS
from workers.runtime import own_groups

#: Largest size of the gradients summed in one collective: DDP's default.
BUCKET_BYTES = 25 << 20

Hosts = tuple[int, ...]


class HostGroups:
    """A group for each set of ranks that host an expert together."""

    def __init__(self, everybody: dist.ProcessGroup | None) -> None:
        self._everybody = everybody
        self._opened: dict[Hosts, dist.ProcessGroup | None] = {}

    def open(self, host_sets: Iterable[Hosts]) -> None:
        """Open the missing groups. All ranks call this together, with the same sets."""
        for hosts in sorted({tuple(sorted(each)) for each in host_sets} - self._opened.keys()):
            if len(hosts) == 1:
                continue
            self._opened[hosts] = found = open_subgroup(GRADIENTS, hosts, self._everybody)
            if found is not None:
                own_groups.own(found)

    def of(self, hosts: Hosts) -> dist.ProcessGroup | None:
        """Return the group of `hosts`; None for a single host, or if this rank is not among them."""
        return self._opened.get(tuple(sorted(hosts)))

    def sum_gradients(self, gradients: Iterable[tuple[Hosts, Tensor]]) -> None:
        """Sum the gradients of this rank's experts over their hosts, in place.

        Args:
            gradients: pairs (hosts, gradient), in the same order on all hosts.
        """
        by_hosts: dict[Hosts, list[Tensor]] = {}
        for hosts, gradient in gradients:
            by_hosts.setdefault(tuple(sorted(hosts)), []).append(gradient)
        for hosts, shared in sorted(by_hosts.items()):
            if len(hosts) == 1:
                continue
            for bucket in _buckets(shared):
                _sum(bucket, self._opened[hosts])

    def close(self) -> None:
        """Destroy the groups."""
        for group in self._opened.values():
            if group is not None:
                own_groups.disown(group)
                dist.destroy_process_group(group)
        self._opened.clear()


def _buckets(gradients: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Group consecutive gradients of one type into buckets of at most BUCKET_BYTES."""
    bucket: list[Tensor] = []
    size = 0
    for gradient in gradients:
        if bucket and (gradient.dtype != bucket[0].dtype or size + gradient.nbytes > BUCKET_BYTES):
            yield bucket
            bucket, size = [], 0
        bucket.append(gradient)
        size += gradient.nbytes
    if bucket:
        yield bucket


def _sum(gradients: Sequence[Tensor], group: dist.ProcessGroup | None) -> None:
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    dist.all_reduce(flat, group=group)
    sums = flat.split([gradient.numel() for gradient in gradients])
    for gradient, total in zip(gradients, sums, strict=True):
        gradient.copy_(total.view(gradient.shape))
