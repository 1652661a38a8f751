"""Values that a state cannot hold are detected when it is first taken; all others survive a round trip."""

from __future__ import annotations

import enum
import io
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from punctual.function import TrainingFunction
from workers.runtime.failures import WorkerFailureError
from workers.runtime.function.parts import TrainingParts
from workers.runtime.iterating.training_state import Progress, ShardCapture, check_portable, final_weights
from workers.runtime.state.layout import put_together, take_apart
from workers.runtime.state.portable import TYPE

Point = namedtuple("Point", "x y")


@dataclass
class Record:
    seen: int = 0


class Phase(enum.IntEnum):
    WARM = 1


class Metres(float):
    pass


class Remembering(TrainingFunction):
    """A function whose state is what a test gives it."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}

    def init_model(self) -> nn.Module:
        return nn.Linear(2, 1)

    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def init_dataset(self) -> Any:
        return []

    def train(self, batch: Any, model: nn.Module) -> Any:
        return model(batch).sum()

    def state_dict(self) -> dict[str, Any]:
        return self.kept


def _parts(kept: dict[str, Any] | None = None, **others: Any) -> TrainingParts:
    function = Remembering()
    function.kept = kept or {}
    module = others.get("module") or function.init_model()
    optimizer = others.get("optimizer") or function.init_optimizer(module)
    return TrainingParts(function, module, optimizer, others.get("scheduler"), torch.device("cpu"))


def _through_a_file(state: Any) -> Any:
    rest, layout, tensors = take_apart(state, lambda _path: False)
    buffer = io.BytesIO()
    torch.save({"rest": rest, "values": tensors}, buffer)
    buffer.seek(0)
    read = torch.load(buffer, weights_only=True)
    return put_together(
        read["rest"], {entry.path: value for entry, value in zip(layout, read["values"], strict=True)}
    )


@pytest.mark.parametrize(
    "value",
    [
        np.float32(0.1), np.float64(0.1), np.float16(2.5), np.longdouble(1) / 3, np.int64(-(2**62)),
        np.uint8(7), np.bool_(True), np.complex64(1 + 2j), np.datetime64("2026-11-27T10:00"),
        np.timedelta64(3, "s"),
        True, 2**127, 1e-300, float("inf"), 1 + 2j, b"bytes", None, torch.float16, torch.device("cpu"),
        (1, (2.0, "three")), [1, [None]], {1, 2}, frozenset({1, (2, 3)}), deque([1, 2], maxlen=3),
        Counter("banana"), OrderedDict(b=1, a=[2]), defaultdict(list, a=[1]), defaultdict(None, a=1),
        {1: "a", "b": 2, (3, "c"): 4, 2.5: 5, None: 6},
        np.random.default_rng(3).bit_generator.state, np.random.RandomState(3).get_state(),
    ],
    ids=lambda value: f"{type(value).__name__} {value}"[:40],
)  # fmt: skip
def test_values_of_a_state_survive_a_round_trip(value: Any) -> None:
    (again,) = _through_a_file([value])
    assert type(again) is type(value)
    assert repr(again) == repr(value)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3), np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.array(3),
        np.empty((0, 4), np.int16), np.arange(10)[::-2], np.array(["a", "bcd"]), np.array([1.5], ">f8"),
        np.array([True, False]), np.array(["2026-11-27"], "M8[D]"), np.array([1 + 2j]),
        np.array([2**40], "u8"), np.broadcast_to(np.arange(3), (2, 3)),
    ],
    ids=lambda array: f"{array.dtype.str} {array.shape}",
)  # fmt: skip
def test_arrays_come_back_writable_with_their_dtype_and_order(array: Any) -> None:
    again = _through_a_file({"array": array})["array"]
    assert (again.dtype, again.shape) == (array.dtype, array.shape)
    assert np.array_equal(again, array)
    assert again.flags.f_contiguous == (array.flags.f_contiguous or array.ndim < 2 or array.size == 0)
    again[...] = array[()]


def test_numpy_texts_and_keys_become_python_ones() -> None:
    state = {np.int64(3): np.str_("a"), np.str_("name"): np.bytes_(b"b"), "seen": {np.int64(5)}}
    again = _through_a_file(state)
    assert again == state
    assert [type(key) for key in again] == [int, str, str]
    assert [type(value) for value in again.values()] == [str, bytes, set]


def _own_list() -> list[Any]:
    taken: list[Any] = []
    taken.append(taken)
    return taken


@pytest.mark.parametrize(
    "value",
    [
        Point(1, 2), Record(), Phase.WARM, Metres(2.0), datetime(2026, 11, 27, tzinfo=UTC), Decimal("0.1"),
        Fraction(1, 3), Path("here"), range(3), slice(1), lambda step: 0.5, torch.Generator(), object(),
        np.array([object()]), np.ma.masked_array([1.0]), np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")]),
        defaultdict(lambda: 0), {Phase.WARM: 1}, {torch.zeros(1): 1}, {Point(1, 2)}, {TYPE: "Counter"},
        _own_list(), int, ..., nn.Linear(1, 1),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_a_value_that_cannot_be_restored_is_refused_with_its_path(value: Any) -> None:
    with pytest.raises(WorkerFailureError) as caught:
        check_portable(_parts({"seen": [{"last": value}]}))
    assert caught.value.reason == "function_error"
    assert caught.value.message.startswith("state_dict(): ['seen'][0]")
    assert "which a stored state cannot hold; give numbers," in caught.value.message


def test_an_unportable_state_is_refused_at_any_iteration() -> None:
    parts = _parts({"best": 1.0})
    check_portable(parts)
    capture = ShardCapture(parts, generation=1, global_batch_size=4, rank=1, world_size=2)
    capture.shard(Progress(1), copy=True, own={})
    parts.function.kept["best"] = Decimal("0.5")  # type: ignore[attr-defined]
    with pytest.raises(WorkerFailureError) as caught:
        capture.shard(Progress(2), copy=True, own={})
    assert caught.value.message.startswith("state_dict(): ['best'] is a decimal.Decimal, which")


class _Extra(nn.Linear):
    def get_extra_state(self) -> Any:
        return {"since": datetime(2026, 11, 27, tzinfo=UTC)}

    def set_extra_state(self, state: Any) -> None:
        pass


class _Broken(nn.Linear):
    def get_extra_state(self) -> Any:
        raise KeyError("vocabulary")


class _Schedule(torch.optim.lr_scheduler.ExponentialLR):
    def __init__(self, optimizer: Any) -> None:
        self.rule = lambda step: 0.5
        super().__init__(optimizer, 0.9)


def test_model_optimizer_and_scheduler_are_refused_by_name() -> None:
    optimizer = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1)
    optimizer.param_groups[0]["rule"] = range(3)
    parts = {
        "of the model: ['_extra_state']['since'] is a datetime.datetime": _parts(module=_Extra(2, 1)),
        "of the optimizer: ['param_groups'][0]['rule'] is a range": _parts(optimizer=optimizer),
        "of the scheduler: ['rule'] is a function": _parts(
            scheduler=_Schedule(torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1))
        ),
    }
    for sentence, training_parts in parts.items():
        with pytest.raises(WorkerFailureError) as caught:
            check_portable(training_parts)
        assert caught.value.message.startswith(f"state_dict() {sentence}, which")


def test_an_error_in_a_models_state_dict_is_the_models_own() -> None:
    for take in (check_portable, final_weights):
        with pytest.raises(WorkerFailureError) as caught:
            take(_parts(module=_Broken(2, 1)))
        assert caught.value.reason == "function_error"
        assert caught.value.message.startswith("state_dict() of the model: KeyError: 'vocabulary'")


@pytest.mark.parametrize("name", ["LambdaLR", "OneCycleLR", "CyclicLR", "ReduceLROnPlateau", "SequentialLR"])
def test_pytorchs_schedulers_with_numpy_numbers_can_be_stored(name: str) -> None:
    optimizer = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=float(np.float32(0.1)), momentum=0.9)
    kinds = torch.optim.lr_scheduler
    scheduler: Any = {
        "LambdaLR": lambda: kinds.LambdaLR(optimizer, lambda step: 0.9**step),
        "OneCycleLR": lambda: kinds.OneCycleLR(optimizer, np.float64(0.3), total_steps=9),
        "CyclicLR": lambda: kinds.CyclicLR(optimizer, 0.1, 0.3, scale_fn=lambda step: 0.5),
        "ReduceLROnPlateau": lambda: kinds.ReduceLROnPlateau(optimizer, factor=np.float64(0.1)),
        "SequentialLR": lambda: kinds.SequentialLR(
            optimizer, [kinds.ConstantLR(optimizer), kinds.CosineAnnealingLR(optimizer, 9)], [np.int64(3)]
        ),
    }[name]()
    check_portable(_parts(optimizer=optimizer, scheduler=scheduler))
    assert repr(_through_a_file(scheduler.state_dict())) == repr(scheduler.state_dict())
