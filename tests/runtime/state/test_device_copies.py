"""A state is copied from a device to the host whole, in order, through a few sub-buffers that fill
meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from recovery.store.client import _write_all
from workers.runtime.state.device_copies import DeviceCopies, Transfer
from workers.runtime.state.shards import Shard

SIZES = st.lists(st.integers(0, 70), max_size=12)
TYPES = st.sampled_from([torch.float32, torch.float16, torch.int64, torch.uint8])


@dataclass
class Device:
    """Copies only when it is waited for, as late as a device may; without a wait the buffer stays zero."""

    begun: int = 0
    done: int = 0
    allocated: list[Tensor] = field(default_factory=list)

    def begin(self, transfers: Sequence[Transfer]) -> Callable[[], None]:
        self.begun += 1

        def wait() -> None:
            for target, source in transfers:
                target.copy_(source)
            self.done += 1

        return wait

    def allocate(self, size: int) -> Tensor:
        self.allocated.append(torch.zeros(size, dtype=torch.uint8))
        return self.allocated[-1]


def copies(device: Device, count: int = 3, size: int = 64) -> DeviceCopies:
    return DeviceCopies(device.begin, device.allocate, count=count, size=size)


def values_of(sizes: Sequence[int], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(sum(sizes))
    return [torch.randint(0, 100, (size,), generator=generator).to(dtype) for size in sizes]


def bytes_of(values: Sequence[Tensor]) -> bytes:
    return b"".join(value.numpy().tobytes() for value in values)


@given(sizes=SIZES, dtype=TYPES, count=st.integers(1, 4), size=st.integers(1, 100))
def test_all_bytes_arrive_in_order_for_any_number_of_sub_buffers(
    sizes: list[int], dtype: torch.dtype, count: int, size: int
) -> None:
    device, values = Device(), values_of(sizes, dtype)
    came = [bytes(chunk) for chunk in copies(device, count, size).chunks(values)]
    assert b"".join(came) == bytes_of(values)
    assert all(len(chunk) == size for chunk in came[:-1]), "many small tensors share a sub-buffer"
    assert len(device.allocated) == count
    assert device.begun == device.done == len(came)


def test_the_next_sub_buffers_fill_while_one_is_read() -> None:
    device = Device()
    chunks = copies(device, count=3, size=64).chunks(values_of([16] * 10))
    next(chunks)
    assert (device.begun, device.done) == (3, 1)
    next(chunks)
    assert (device.begun, device.done) == (4, 2)


def test_a_chunk_keeps_its_bytes_until_the_next_one_is_asked_for() -> None:
    values = values_of([16] * 10)
    place = 0
    for chunk in copies(Device(), count=2, size=64).chunks(values):
        first = bytes(chunk)
        assert first == bytes_of(values)[place : place + 64] == bytes(chunk)
        place += len(chunk)


def test_a_reader_that_breaks_off_leaves_no_copy_in_flight() -> None:
    device = Device()
    way = copies(device, count=3, size=64)
    reading = way.chunks(values_of([16] * 10))
    next(reading)
    with pytest.raises(RuntimeError, match="reader already"):
        next(way.chunks(values_of([1])))
    reading.close()
    assert device.begun == device.done
    again = values_of([5, 40])
    assert b"".join(map(bytes, way.chunks(again))) == bytes_of(again)
    assert len(device.allocated) == 3, "the same sub-buffers"


def test_a_shard_is_written_whole_whatever_part_of_it_is_on_a_device(tmp_path) -> None:
    values = values_of([30, 7, 0, 50, 9])
    shard = Shard({}, values, left=frozenset({1, 3}), copies=copies(Device(), count=2, size=16))
    descriptor = os.open(tmp_path / "shard", os.O_RDWR | os.O_CREAT)
    _write_all(descriptor, chain([b"described"], shard.pieces()))
    assert os.pread(descriptor, 10_000, 0) == b"described" + bytes_of(values)
    os.close(descriptor)
