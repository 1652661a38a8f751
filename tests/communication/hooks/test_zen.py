"""Zen's schemes on real ranks: the exact sum, with the bytes of the reference exchanges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from communication.hooks.groups import PlacementGroups
from communication.hooks.zen.gradients import SparseGradients
from communication.hooks.zen.hashing import murmur3
from communication.hooks.zen.orders import ZenOrders, zen_orders_from_message
from communication.hooks.zen.packets import PACKET_FORMATS, Rows, pack, packet_bytes, unpack
from communication.hooks.zen.partitions import ContiguousPartitions, HashedPartitions
from communication.plan import content_digest
from communication.profiles.placement import PlacementShape
from communication.zen import hash_family
from communication.zen.choosing import EXECUTABLE
from communication.zen.formats import Format
from communication.zen.hash_family import drawn_family
from communication.zen.indices import nonzero_indices
from communication.zen.partitioning import partition_table
from communication.zen.reference_exchange import Exchanged, zen_exchange
from communication.zen.schemes import Scheme
from communication.zen.sparsity import contiguous_parts
from tests.communication.hooks.ranks import run_on_ranks
from tests.communication.zen.other_exchanges import agsparse_exchange, sparcml_exchange, sparse_ps_exchange

HASHES = drawn_family("a job")
CPU = torch.device("cpu")
UNITS = 301


def message(shape: PlacementShape, *tensors: dict[str, Any], **changes: Any) -> dict[str, Any]:
    content = {
        "planner": "zen",
        "servers": shape.servers,
        "gpus_per_server": shape.gpus_per_server,
        "seeds": list(HASHES.seeds),
        "tensors": list(tensors),
        **changes,
    }
    return {**content, "digest": content_digest(content)}


def tensor_message(name: str, elements: int, width: int, scheme: str, push: str, pull: str) -> dict[str, Any]:
    sizes = {"tensor": name, "elements": elements, "width": width}
    return {**sizes, "scheme": scheme, "push_format": push, "pull_format": pull}


def all_ways(width: int) -> list[dict[str, Any]]:
    """Return every scheme, and Zen with every pair of formats, each with its own tensor."""
    ways = [(scheme.value, "coo", "coo") for scheme in EXECUTABLE if scheme is not Scheme.ZEN]
    ways += [("zen", push.value, pull.value) for push in PACKET_FORMATS for pull in PACKET_FORMATS]
    return [tensor_message(" ".join(way), UNITS * width, width, *way) for way in ways]


def gradient(rank: int, seed: int, width: int, *, whole: bool) -> Tensor:
    """Return mostly zeros, with rows that several ranks have, some of which cancel; the last rank has
    none."""
    if rank == dist.get_world_size() - 1:
        return torch.zeros(UNITS, width)
    generator = torch.Generator().manual_seed(100 * seed + rank)
    result = torch.zeros(UNITS, width)
    rows = torch.randperm(UNITS // 2, generator=generator)[:20]
    if whole:
        result[rows] = torch.randint(-9, 9, (20, width), generator=generator).float()
    else:
        result[rows] = torch.randn(20, width, generator=generator)
    result[:3] = 1.0 if rank else float(2 - dist.get_world_size())
    return result


def orders(shape: PlacementShape, width: int) -> ZenOrders:
    return zen_orders_from_message(message(shape, *all_ways(width)))


def summed(shape: PlacementShape, width: int, sparse: bool) -> dict[str, float]:
    """Return by scheme the largest deviation from an all-reduce over seeds, for integers and for other
    values."""
    groups, plan = PlacementGroups.open(shape), orders(shape, width)
    deviations: dict[str, float] = {}
    for seed in range(1):
        for whole in (True, False):
            own = gradient(dist.get_rank(), seed, width, whole=whole)
            expected = own.clone()
            dist.all_reduce(expected)
            parameters = {tensor.name: nn.Parameter(torch.zeros(UNITS, width)) for tensor in plan.tensors}
            for parameter in parameters.values():
                parameter.grad = own.to_sparse(1) if sparse else own.clone()
            SparseGradients(parameters, plan, groups).after_backward()
            for name, parameter in parameters.items():
                assert parameter.grad is not None
                assert parameter.grad.is_sparse == sparse
                sums = parameter.grad.to_dense() * shape.workers
                key = f"{name} {whole}"
                deviations[key] = max(deviations.get(key, 0.0), float((sums - expected).abs().max()))
                gathered = [torch.empty_like(sums) for _ in range(shape.workers)]
                dist.all_gather(gathered, sums)
                assert all(torch.equal(rank_sums, sums) for rank_sums in gathered), (
                    f"{name}: other bits elsewhere"
                )
    groups.close()
    return deviations


def counted(shape: PlacementShape) -> dict[str, Any]:
    """Return the bytes that this rank received and the imbalances by scheme, for tensors with an index per
    element."""
    groups, results = PlacementGroups.open(shape), {}
    ways = [("zen", "hash_bitmap"), ("zen", "coo"), ("agsparse", "coo"), ("sparcml", "coo")]
    for scheme, pull in [*ways, ("sparse_ps", "coo")]:
        parameter = nn.Parameter(torch.zeros(UNITS))
        parameter.grad = gradient(dist.get_rank(), 7, 1, whole=True).flatten()
        plan = zen_orders_from_message(message(shape, tensor_message("t", UNITS, 1, scheme, "coo", pull)))
        synchroniser = SparseGradients({"t": parameter}, plan, groups)
        synchroniser.after_backward()
        measured = synchroniser.measures
        results[f"{scheme} {pull}"] = (
            measured.received_bytes,
            measured.push_imbalance,
            measured.pull_imbalance,
            measured.densities["t"],
        )
    results["gradient"] = gradient(dist.get_rank(), 7, 1, whole=True).flatten().numpy()
    groups.close()
    return results


def densities_told(shape: PlacementShape) -> tuple[float, float]:
    """Return the density that was measured, and that of this rank's own gradient."""
    groups = PlacementGroups.open(shape)
    parameter = nn.Parameter(torch.zeros(UNITS, 1))
    parameter.grad = gradient(dist.get_rank(), 7, 1, whole=True)
    own = float((parameter.grad != 0).float().mean())
    plan = zen_orders_from_message(message(shape, tensor_message("t", UNITS, 1, "zen", "coo", "coo")))
    synchroniser = SparseGradients({"t": parameter}, plan, groups)
    synchroniser.after_backward()
    groups.close()
    return synchroniser.measures.densities["t"], own


def at_the_edges() -> None:
    """Exchange fewer units than ranks, empty gradients, NaN, and tensors that no rank used."""
    shape = PlacementShape(1, 2)
    groups = PlacementGroups.open(shape)
    tensors = [
        tensor_message(name, 1, 1, "zen", "coo", "hash_bitmap") for name in ("one", "zeros", "nan", "unused")
    ]
    parameters = {tensor["tensor"]: nn.Parameter(torch.ones(1)) for tensor in tensors}
    parameters["one"].grad = torch.tensor([3.0]) if dist.get_rank() else None
    parameters["zeros"].grad = torch.tensor([-0.0])
    parameters["nan"].grad = torch.tensor([float("nan") if dist.get_rank() else 0.0])
    plan = zen_orders_from_message(message(shape, *tensors))
    SparseGradients(parameters, plan, groups).after_backward()
    grads = {name: parameter.grad for name, parameter in parameters.items()}
    assert [str(grads[name]) for name in ("one", "zeros", "nan", "unused")] == [
        "tensor([1.5000])",
        "tensor([0.])",
        "tensor([nan])",
        "tensor([0.])",
    ]
    groups.close()


# -- tests


@pytest.mark.parametrize(
    ("shape", "width", "sparse"),
    [
        (PlacementShape(1, 4), 1, False),
        (PlacementShape(1, 3), 5, True),
        (PlacementShape(2, 2), 3, True),
        (PlacementShape(2, 1), 3, False),
    ],
    ids=str,
)
def test_every_scheme_sums_exactly(shape: PlacementShape, width: int, sparse: bool) -> None:
    for deviations in run_on_ranks(shape.workers, summed, shape, width, sparse):
        assert len(deviations) == 2 * len(all_ways(width))
        for way, deviation in deviations.items():
            assert deviation <= (0.0 if way.endswith("True") and shape.workers != 3 else 2e-6), way


def test_bytes_on_the_wire_equal_the_reference_exchanges() -> None:
    shape, count = PlacementShape(1, 4), 4
    ranks = run_on_ranks(count, counted, shape)
    gradients = [result["gradient"] for result in ranks]
    for way, reference, tables in (
        ("zen hash_bitmap", zen_exchange(gradients, HASHES, Format.HASH_BITMAP), count + 2),
        ("zen coo", zen_exchange(gradients, HASHES, Format.COO), count + 2),
        ("sparse_ps coo", sparse_ps_exchange(gradients), count + 2),
        ("sparcml coo", sparcml_exchange(gradients), 2),
        ("agsparse coo", agsparse_exchange(gradients), 1),
    ):
        expected = padded(reference) if way != "sparcml coo" else reference.received_bytes
        if way == "agsparse coo":
            longest = max(8 * int(np.count_nonzero(values)) for values in gradients)
            expected = (3 * longest,) * count
        for rank, result in enumerate(ranks):
            received, push, pull, density = result[way]
            assert received - 8 * (count - 1) * tables == expected[rank], way
            assert density == np.count_nonzero(gradients[rank]) / UNITS
            if way in ("sparcml coo", "agsparse coo"):
                assert (push, pull) == (1.0, 1.0)
                continue
            assert pull == pytest.approx(reference.pull_imbalance)
            assert push == pytest.approx(fullest_over_mean(way, gradients))


def test_densities_are_those_of_a_rank_where_servers_exchange_sums() -> None:
    """Planners expect a worker's density, which is lower than that of the sum within its server."""
    for measured, own in run_on_ranks(4, densities_told, PlacementShape(2, 2)):
        assert measured == pytest.approx(own)


def fullest_over_mean(way: str, gradients: list[Any]) -> float:
    """Return the fullest server's received indices over the mean."""
    indices = np.concatenate([nonzero_indices(values) for values in gradients])
    parts = len(gradients)
    runs = contiguous_parts(indices, UNITS, parts)
    part = runs if way.startswith("sparse_ps") else HASHES.partition(indices, parts)
    counts = np.bincount(part, minlength=parts)
    return float(counts.max() / counts.mean())


def padded(reference: Exchanged) -> tuple[int, ...]:
    """Return the bytes by worker if each server's answer is as long as the longest."""
    others = len(reference.pull_bytes) - 1
    whole = sum(reference.pull_bytes) // others
    longest = max(whole - pulled for pulled in reference.pull_bytes)
    return tuple(push + others * longest for push in reference.push_bytes)


def test_gradients_of_small_empty_and_odd_sizes_arrive() -> None:
    run_on_ranks(2, at_the_edges)


@pytest.mark.parametrize("parts", [1, 3, 16])
def test_hashes_and_partitions_are_those_of_the_planner(parts: int) -> None:
    keys = np.concatenate([np.arange(3000), [0x87654321, 2**32 - 1]]).astype(np.uint32)
    for seed in (0, 0x5082EDEE, HASHES.seeds[0]):
        mine = murmur3(torch.from_numpy(keys.astype(np.int64)), seed)
        assert np.array_equal(mine.numpy(), hash_family.murmur3(keys, seed).astype(np.int64))
    table = partition_table(UNITS, parts, HASHES)
    units = torch.arange(UNITS)
    hashed = HashedPartitions(UNITS, parts, HASHES.seeds[0], CPU)
    assert hashed.sizes == tuple(map(len, table.members))
    assert np.array_equal(hashed.positions_of(units).numpy(), table.position)
    runs = ContiguousPartitions(UNITS, parts, CPU)
    assert np.array_equal(
        runs.parts_of(units).numpy(), contiguous_parts(np.arange(1, UNITS + 1), UNITS, parts)
    )
    for partitions in (hashed, runs):
        part, position = partitions.parts_of(units), partitions.positions_of(units)
        for number in range(parts):
            mine = units[part == number]
            assert len(mine) == partitions.sizes[number]
            assert torch.equal(partitions.units_of(number, position[part == number]), mine)
            assert torch.equal(position[part == number], torch.arange(len(mine)))


def test_bitmaps_are_those_of_vector_z4() -> None:
    for size, places, byte in ((5, [0, 1], 0x03), (5, [4], 0x10), (5, [2, 4], 0x14)):
        rows = Rows(torch.tensor(places), torch.ones(len(places), 1))
        assert pack(Format.HASH_BITMAP, rows, size)[4 * len(places) :].tolist() == [byte]


@pytest.mark.parametrize("form", PACKET_FORMATS)
@pytest.mark.parametrize(("size", "places"), [(0, []), (9, []), (9, [0, 8]), (64, [1, 7, 8, 63])])
def test_packets_unpack_to_their_rows(form: Format, size: int, places: list[int]) -> None:
    rows = Rows(torch.tensor(places, dtype=torch.int64), torch.randn(len(places), 3))
    packet = pack(form, rows, size)
    assert len(packet) == packet_bytes(form, len(places), size, 3)
    # The packet is unaligned and followed by others.
    lying = torch.cat([torch.zeros(1, dtype=torch.uint8), packet, torch.ones(5, dtype=torch.uint8)])[1:]
    unpacked = unpack(form, lying, len(places), size, 3)
    assert torch.equal(unpacked.places, rows.places)
    assert torch.equal(unpacked.values, rows.values)


TABLE = tensor_message("t", 12, 3, "zen", "coo", "hash_bitmap")
ONE = PlacementShape(1, 1)


@pytest.mark.parametrize(
    ("plan", "complaint"),
    [
        ({"planner": "espresso"}, "not a message of the planner zen"),
        (message(ONE, TABLE) | {"seeds": [1]}, "digest of the plan"),
        (message(ONE, TABLE, seeds=["a"]), "seeds of the plan"),
        (message(ONE, TABLE, seeds=[2**32]), "does not fit 32 bits"),
        (message(ONE, TABLE, servers=0), "servers of the plan"),
        (message(ONE, TABLE, TABLE), "have the same name"),
        (message(ONE, "t"), "a tensor of the plan must have"),  # type: ignore[arg-type]
        (message(ONE, TABLE | {"tensor": ""}), "characters"),
        (message(ONE, TABLE | {"width": 5}), "must be whole rows of 5"),
        (message(ONE, TABLE | {"scheme": "omnireduce"}), "it must be one of dense, zen"),
        (message(ONE, TABLE | {"pull_format": "blocks"}), "it must be one of coo, hash_bitmap"),
    ],
)
def test_a_malformed_message_is_refused(plan: dict[str, Any], complaint: str) -> None:
    assert zen_orders_from_message(message(ONE, TABLE)).tensors[0].width == 3
    with pytest.raises(ValueError, match=complaint):
        zen_orders_from_message(plan)
