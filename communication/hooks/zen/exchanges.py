"""The schemes for a sparse tensor: every rank ends with the sum of all, with the same bits.

Sizes depend on data. So counts are exchanged before rows, and buffers always fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from communication.hooks.zen.packets import Rows, added_up, pack, packet_bytes, unpack
from communication.hooks.zen.partitions import Partitions
from communication.hooks.zen.wire import Wire
from communication.zen.formats import Format


@dataclass(frozen=True)
class Exchanged:
    """The result of an exchange.

    Attributes:
        total: the sum, in ascending order of places.
        pushed, owned: units that each server received, and owned after aggregation; empty for a scheme
            without servers.
    """

    total: Rows
    pushed: tuple[int, ...] = ()
    owned: tuple[int, ...] = ()


def in_parts(
    mine: Rows, partitions: Partitions, push_format: Format, pull_format: Format, wire: Wire
) -> Exchanged:
    """Run Zen, Balanced Parallelism or a sparse parameter server: each owner sums its part and sends it to
    all. They differ in partitions and formats."""
    width = mine.values.shape[1]
    part = partitions.parts_of(mine.places)
    order = torch.argsort(part, stable=True)
    counts = torch.bincount(part, minlength=wire.size).tolist()
    ordered = Rows(partitions.positions_of(mine.places[order]), mine.values[order])
    # Numbers of units from each rank to each: a rank needs its column, and all of them show the imbalance.
    table = wire.numbers(counts, mine.places.device)
    pushed = [sum(row[server] for row in table) for server in range(wire.size)]
    sent = [
        pack(push_format, each, size)
        for each, size in zip(_cut(ordered, counts), partitions.sizes, strict=True)
    ]
    size = partitions.sizes[wire.rank]
    coming = [row[wire.rank] for row in table]
    packets = wire.to_each(sent, [packet_bytes(push_format, count, size, width) for count in coming])
    received = [
        unpack(push_format, packet, count, size, width) for packet, count in zip(packets, coming, strict=True)
    ]
    own = added_up(received)
    left = own.without_zeros()
    told = wire.numbers([len(left), len(own)], mine.places.device)
    sizes = [
        packet_bytes(pull_format, count, size, width)
        for (count, _), size in zip(told, partitions.sizes, strict=True)
    ]
    pulled = wire.to_all(pack(pull_format, left, size), sizes)
    total = [
        unpack(pull_format, packet, count, size, width)
        for packet, (count, _), size in zip(pulled, told, partitions.sizes, strict=True)
    ]
    places = torch.cat([partitions.units_of(number, each.places) for number, each in enumerate(total)])
    places, order = places.sort()
    values = torch.cat([each.values for each in total])[order]
    return Exchanged(Rows(places, values), tuple(pushed), tuple(owned for _, owned in told))


def all_to_everybody(mine: Rows, wire: Wire) -> Exchanged:
    """Run AGsparse: all ranks gather all rows."""
    width = mine.values.shape[1]
    counts = [count for (count,) in wire.numbers([len(mine)], mine.places.device)]
    sizes = [packet_bytes(Format.COO, count, 0, width) for count in counts]
    packets = wire.to_all(pack(Format.COO, mine, 0), sizes)
    rows = [
        unpack(Format.COO, packet, count, 0, width) for packet, count in zip(packets, counts, strict=True)
    ]
    return Exchanged(added_up(rows).without_zeros())


def doubling(mine: Rows, wire: Wire) -> Exchanged:
    """Run SparCML: partners at doubling distance exchange their sums so far.

    If the number of ranks is not a power of two, those beyond send theirs to a partner first, and receive the
    whole sum at the end.
    """
    power = 1 << (wire.size.bit_length() - 1)
    beyond, has_partner = wire.rank >= power, wire.rank + power < wire.size
    partner = wire.rank - power if beyond else wire.rank + power
    if power < wire.size:
        given = _swapped(mine, partner if beyond else None, partner if has_partner else None, wire)
        mine = mine if given is None else added_up([mine, given])
    distance = 1
    while distance < power:
        other = None if beyond else wire.rank ^ distance
        given = _swapped(mine, other, other, wire)
        if given is not None:
            # The sum of two has the same bits on both.
            mine = added_up([mine, given]).without_zeros()
        distance *= 2
    if power < wire.size:
        given = _swapped(mine, partner if has_partner else None, partner if beyond else None, wire)
        mine = mine if given is None else given
    return Exchanged(mine.without_zeros())


def _swapped(mine: Rows, to: int | None, source: int | None, wire: Wire) -> Rows | None:
    """Send rows to one rank and receive from one; all ranks call this together."""
    width = mine.values.shape[1]
    counts = [count for (count,) in wire.numbers([len(mine)], mine.places.device)]
    nothing = torch.empty(0, dtype=torch.uint8, device=mine.places.device)
    packet = pack(Format.COO, mine, 0)
    sizes = [
        packet_bytes(Format.COO, counts[rank], 0, width) if rank == source else 0 for rank in range(wire.size)
    ]
    received = wire.to_each([packet if rank == to else nothing for rank in range(wire.size)], sizes)
    if source is None:
        return None
    return unpack(Format.COO, received[source], counts[source], 0, width)


def _cut(rows: Rows, counts: Sequence[int]) -> list[Rows]:
    return [
        Rows(places, values)
        for places, values in zip(
            rows.places.split(list(counts)), rows.values.split(list(counts)), strict=True
        )
    ]
