"""One iteration of a model with sparse tensors: dense buckets during the backward pass, sparse tensors after.

This models the training runtime: DistributedDataParallel sends buckets in sequence, each when its last
gradient is ready; sparse tensors are exchanged once the backward pass is over and the link is free.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from communication.collectives import all_reduce_bytes
from communication.profiles.link import LinkProfile
from communication.profiles.model import ModelProfile
from communication.profiles.placement import PlacementShape

#: Bucket sizes of DistributedDataParallel; the first bucket is smaller.
BUCKET_BYTES = 25 << 20
FIRST_BUCKET_BYTES = 1 << 20


@dataclass(frozen=True)
class DenseTraffic:
    """All-reduces of the dense tensors of one iteration.

    Attributes:
        end_seconds: end of the last one, from the beginning of the backward pass.
        bytes_between: that one server receives from the others. bytes_within: that a GPU receives within its
            server.
    """

    end_seconds: float
    bytes_between: float
    bytes_within: float


def dense_traffic(
    model: ModelProfile, placement: PlacementShape, links: LinkProfile, apart: Collection[str] = ()
) -> DenseTraffic:
    """Return the all-reduces of a model's tensors except those synchronised ``apart``."""
    end = between = within = 0.0
    for begin, one in all_reduces(model, placement, links, apart):
        end = begin + one.end_seconds
        between, within = between + one.bytes_between, within + one.bytes_within
    return DenseTraffic(end, between, within)


def all_reduces(
    model: ModelProfile, placement: PlacementShape, links: LinkProfile, apart: Collection[str] = ()
) -> Iterator[tuple[float, DenseTraffic]]:
    """Yield for each bucket when its all-reduce begins, and its own cost."""
    ready = end = 0.0
    waiting, capacity = 0, FIRST_BUCKET_BYTES
    sizes = [
        0 if name in apart else size
        for name, size in zip(model.tensor_names, model.sizes_bytes.tolist(), strict=True)
    ]
    # The last bucket waits for its last tensor only, not for later separately synchronised ones.
    last = max((place for place, size in enumerate(sizes) if size), default=0)
    for place, (size, gap) in enumerate(zip(sizes, model.gap_seconds.tolist(), strict=True)):
        ready += gap
        waiting += size
        if waiting and (waiting >= capacity or place == last):
            one, begin = _all_reduce(waiting, placement, links), max(end, ready)
            yield begin, one
            end = begin + one.end_seconds
            waiting, capacity = 0, BUCKET_BYTES


def _all_reduce(size_bytes: float, placement: PlacementShape, links: LinkProfile) -> DenseTraffic:
    """Return the cost of one all-reduce, hierarchical on several servers with several GPUs, on idle links."""
    gpus, servers = placement.gpus_per_server, placement.servers
    within = all_reduce_bytes(gpus, size_bytes)
    between = all_reduce_bytes(servers, size_bytes)
    seconds = 0.0
    if gpus > 1:
        # On several servers: a reduce-scatter before and an all-gather after, with one call each.
        seconds += links.within.seconds(within) + (links.within.latency_seconds if servers > 1 else 0.0)
    if servers > 1:
        seconds += links.granted.seconds(between)
    return DenseTraffic(seconds, between, within)
