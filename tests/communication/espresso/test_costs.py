"""Costs of operations: a worked example, and bytes as they are really received."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from communication.espresso.baselines import FP32, all_to_all_twice, inter_all_gather, inter_all_to_all
from communication.espresso.chains import option_table
from communication.espresso.costs import CostModel
from communication.espresso.decision_tree import belongs, gpu_options, options
from communication.espresso.operations import Operation, Resource, operations
from communication.espresso.options import Level, Option, Routine, Step, Task, on_device
from communication.library.codecs import WIRE_FORMATS, cpu_codec, gpu_codec
from communication.profiles.codec import CodecProfile, Device
from communication.profiles.link import LinkProfile, LinkRate
from communication.profiles.model import ModelProfile
from communication.profiles.placement import PlacementShape
from tests.communication.espresso.carried_out import carry_out

SHAPE = PlacementShape(8, 8)
LINKS = LinkProfile(LinkRate(150e-6, 2.5e9), LinkRate(150e-6, 50e9))
RANDOM_K = {Device.GPU: gpu_codec("random-k"), Device.CPU: cpu_codec("random-k", 16e9)}
COSTS = CostModel(SHAPE, LINKS, RANDOM_K)
#: 100 MB.
ELEMENTS = np.array([25_000_000])


def milliseconds(option: Option, resource: Resource, costs: CostModel = COSTS) -> list[float]:
    return [
        1e3 * float(costs.seconds(operation, ELEMENTS)[0])
        for operation in operations(option, costs.shape)
        if operation.resource(costs.shape) is resource
    ]


def test_vector_e6() -> None:
    assert milliseconds(FP32, Resource.WITHIN)[0] == pytest.approx(1.90, abs=0.005)
    assert milliseconds(FP32, Resource.BETWEEN) == [pytest.approx(70.3, abs=0.05)]
    gathered = milliseconds(inter_all_gather(Device.GPU), Resource.BETWEEN)
    assert gathered == [pytest.approx(5.75, abs=0.005)]
    shuffled = milliseconds(inter_all_to_all(Device.GPU), Resource.BETWEEN)
    assert len(shuffled) == 2
    assert sum(shuffled) == pytest.approx(1.70, abs=0.005)


def test_published_schemes_are_in_the_tree() -> None:
    for make in (inter_all_gather, inter_all_to_all, all_to_all_twice):
        assert all(belongs(make(device)) for device in Device)
    assert belongs(FP32)


def test_each_payload_is_decoded_separately_by_default() -> None:
    """Eight payloads of 3,125,000 elements, which is beyond the size up to which times are constant."""
    small = np.array([8_000_000])
    decode = operations(inter_all_gather(Device.GPU), SHAPE)[3]
    assert COSTS.seconds(decode, small)[0] == pytest.approx(8 * 34e-6)
    at_once = replace(COSTS, decode_per_payload=False)
    assert at_once.seconds(decode, small)[0] == pytest.approx(34e-6 * 8e6 / (1 << 20))


def test_a_servers_processors_compress_for_all_its_gpus() -> None:
    encode = operations(inter_all_gather(Device.CPU), SHAPE)[1]
    assert COSTS.seconds(encode, ELEMENTS)[0] == pytest.approx(4 * 25e6 * 8 / 16e9)
    first_alone = operations(
        (
            Step(Task.COMM1, Routine.REDUCE, Level.INTRA),
            *on_device(inter_all_gather(Device.GPU), Device.CPU)[1:4],
            Step(Task.COMM2, Routine.BROADCAST, Level.INTRA),
        ),
        SHAPE,
    )[1]
    # Only the root, of the whole gradient.
    assert first_alone.first_gpu_alone
    assert COSTS.seconds(first_alone, ELEMENTS)[0] == pytest.approx(4 * 25e6 * 8 / 16e9)


def test_upper_bounds_assume_free_compression_or_one_channel() -> None:
    free = replace(COSTS, free_compression=True)
    assert milliseconds(inter_all_gather(Device.GPU), Resource.GPU, free) == [0.0, 0.0]
    model = ModelProfile.unnamed("one", ELEMENTS, np.zeros(1))
    one = option_table(model, replace(COSTS, single_channel=True), [FP32])
    assert set(one.chains.resources[0].tolist()) == {Resource.BETWEEN}
    both = option_table(model, COSTS, [FP32])
    assert one.chains.totals.sum() == pytest.approx(both.chains.totals.sum())
    assert one.within_bytes[0, 0] == both.within_bytes[0, 0] > 0.0


def test_a_servers_interface_receives_for_all_its_gpus() -> None:
    """Eight servers all-reduce 100 MB, and each of eight GPUs an eighth of it: 2 * 7/8 of 100 MB."""
    table = option_table(ModelProfile.unnamed("one", ELEMENTS, np.zeros(1)), COSTS, [FP32])
    assert table.between_bytes[0, 0] == pytest.approx(2 * 7 / 8 * 100e6, rel=1e-6)


HALF = CodecProfile.with_threshold("half", Device.GPU, WIRE_FORMATS["fp16"], 1e-5, 1e-5, 1 << 20)


@pytest.mark.parametrize("shape", [PlacementShape(2, 4), PlacementShape(3, 3), PlacementShape(4, 1)], ids=str)
@pytest.mark.parametrize("elements", [720, 77, 5])
def test_bytes_are_those_that_ranks_receive(shape: PlacementShape, elements: int) -> None:
    """In exchanges where each rank itself receives the counted bytes, and parts are equal if a gradient
    divides evenly; otherwise no rank receives more."""
    costs = CostModel(shape, LINKS, {Device.GPU: HALF})
    exact = elements % (shape.workers * shape.workers) == 0
    gradients = np.ones((shape.workers, elements), dtype=np.float32)
    for option in gpu_options():
        exchanges = [each for each in operations(option, shape) if not each.step.is_codec]
        if any(_counted_otherwise(exchange) for exchange in exchanges):
            continue
        ranks = carry_out(
            option,
            shape,
            gradients,
            encode=lambda values: values.astype(np.float16),
            decode=lambda piece: piece.astype(np.float32),
        )
        for number, operation in enumerate(exchanges):
            counted = costs.received_bytes(operation, np.array([elements]))[0]
            most = max(rank.received_bytes[number] for rank in ranks)
            assert most == counted if exact else most <= counted


def _counted_otherwise(operation: Operation) -> bool:
    """Return whether ranks may receive other bytes: summed on the way, in rounds of trees, or by roots
    alone."""
    routine = operation.step.routine
    summed = routine in (Routine.ALL_REDUCE, Routine.REDUCE_SCATTER, Routine.REDUCE)
    return summed or routine in (Routine.GATHER, Routine.BROADCAST)


def test_all_costs_of_the_tree_are_finite_and_not_negative() -> None:
    model = ModelProfile.unnamed("sizes", np.array([1, 3, 64, 1000, 1 << 28]), np.zeros(5))
    for shape in (SHAPE, PlacementShape(1, 8), PlacementShape(8, 1), PlacementShape(1, 1)):
        table = option_table(model, replace(COSTS, shape=shape), options()[::3])
        for found in (table.chains.seconds, table.between_bytes, table.within_bytes):
            assert np.all(np.isfinite(found) & (found >= 0.0))
        assert shape.spread or not table.between_bytes.any()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"codecs": {Device.CPU: gpu_codec("dgc")}}, "measured on gpu, not on cpu"),
        ({"codecs": {Device.GPU: gpu_codec("dgc"), Device.CPU: cpu_codec("onebit")}}, "one codec"),
        ({"cpu_servers": 0}, "cpu_servers is 0; it must be at least 1"),
    ],
)
def test_inconsistent_cost_models_are_refused(wrong: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        replace(COSTS, **wrong)


def test_tables_refuse_gradients_that_cannot_be_sent() -> None:
    model = ModelProfile("m", ("a", "empty"), np.array([4, 0]), np.zeros(2))
    with pytest.raises(ValueError, match="tensor 'empty' has no elements"):
        option_table(model, COSTS, [FP32])
    one = ModelProfile.unnamed("m", np.array([4]), np.zeros(1))
    with pytest.raises(ValueError, match="no option to choose from"):
        option_table(one, COSTS, [])
    with pytest.raises(ValueError, match="compress on gpu, for which there is no codec"):
        option_table(one, replace(COSTS, codecs={}), [inter_all_gather(Device.GPU)])
