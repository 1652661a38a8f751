"""One iteration of a model with sparse tensors: dense buckets beside the backward pass, sparse ones after it.

That is how the training runtime does it: DistributedDataParallel sends a bucket as soon as its last gradient
is ready, one after the other; what is sparse is exchanged when the backward pass is over and the link free.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from communication.collectives import all_reduce_bytes
from communication.profiles.link import LinkProfile
from communication.profiles.model import ModelProfile
from communication.profiles.placement import PlacementShape

#: As DistributedDataParallel fills them, the first one apart.
BUCKET_BYTES = 25 << 20
FIRST_BUCKET_BYTES = 1 << 20


@dataclass(frozen=True)
class DenseTraffic:
    """All-reduces of the dense tensors of one iteration.

    Attributes:
        end_seconds: when the last one is done, from the beginning of the backward pass.
        bytes_between: that one server receives from the others. bytes_within: that a GPU receives within its
            server.
    """

    end_seconds: float
    bytes_between: float
    bytes_within: float


def dense_traffic(
    model: ModelProfile, placement: PlacementShape, links: LinkProfile, apart: Collection[str] = ()
) -> DenseTraffic:
    """The all-reduces of a model's tensors but those that are synchronised ``apart``."""
    end = between = within = 0.0
    for begin, one in all_reduces(model, placement, links, apart):
        end = begin + one.end_seconds
        between, within = between + one.bytes_between, within + one.bytes_within
    return DenseTraffic(end, between, within)


def all_reduces(
    model: ModelProfile, placement: PlacementShape, links: LinkProfile, apart: Collection[str] = ()
) -> Iterator[tuple[float, DenseTraffic]]:
    """Of each bucket when its all-reduce begins, and what that takes by itself."""
    ready = end = 0.0
    waiting, capacity = 0, FIRST_BUCKET_BYTES
    sizes = [
        0 if name in apart else size
        for name, size in zip(model.tensor_names, model.sizes_bytes.tolist(), strict=True)
    ]
    # The last bucket waits for the last tensor that is in any, whatever is computed apart after it.
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
    """One all-reduce, hierarchical on several servers with several GPUs each, as it is alone on its links."""
    gpus, servers = placement.gpus_per_server, placement.servers
    within = all_reduce_bytes(gpus, size_bytes)
    between = all_reduce_bytes(servers, size_bytes)
    seconds = 0.0
    if gpus > 1:
        # On several servers a reduce-scatter before and an all-gather after, each a call.
        seconds += links.within.seconds(within) + (links.within.latency_seconds if servers > 1 else 0.0)
    if servers > 1:
        seconds += links.granted.seconds(between)
    return DenseTraffic(seconds, between, within)
