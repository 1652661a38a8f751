"""Baselines: the choices of other systems as strategies for the same question (Espresso 4.6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from communication.espresso.options import Level, Option, Routine, Step, Task
from communication.espresso.question import Question
from communication.profiles.arrays import Integers
from communication.profiles.codec import Device

SMALLEST_FOR_BYTEPS_BYTES = 65_536
"""BytePS-Compress leaves smaller tensors uncompressed."""

_SCATTER = Step(Task.COMM1, Routine.REDUCE_SCATTER, Level.INTRA)
_REDUCE_ALL = Step(Task.COMM, Routine.ALL_REDUCE, Level.INTER)
_GATHER = Step(Task.COMM2, Routine.ALL_GATHER, Level.INTRA)

FP32: Option = (_SCATTER, _REDUCE_ALL, _GATHER)
"""Hierarchical, without compression."""


def _codec(device: Device) -> tuple[Step, Step]:
    return Step(Task.COMP, Routine.ENCODE, None, device), Step(Task.DECOMP, Routine.DECODE, None, device)


def inter_all_gather(device: Device) -> Option:
    """Return compression only between servers: an all-gather of all payloads."""
    encode, decode = _codec(device)
    return _SCATTER, encode, Step(Task.COMM_C, Routine.ALL_GATHER, Level.INTER), decode, _GATHER


def inter_all_to_all(device: Device) -> Option:
    """Return compression only between servers: shuffle parts, decode, sum, encode again and distribute."""
    encode, decode = _codec(device)
    return _SCATTER, encode, *_between_in_two_steps(device), decode, _GATHER


def all_to_all_twice(device: Device) -> Option:
    """Return compression before the exchange within servers, and again before the one between them."""
    encode, decode = _codec(device)
    shuffled = Step(Task.COMM1_C, Routine.ALL_TO_ALL, Level.INTRA)
    distributed = Step(Task.COMM2_C, Routine.ALL_GATHER, Level.INTRA)
    return encode, shuffled, decode, encode, *_between_in_two_steps(device), distributed, decode


def _between_in_two_steps(device: Device) -> tuple[Step, ...]:
    encode, decode = _codec(device)
    shuffled = Step(Task.COMM1_C, Routine.ALL_TO_ALL, Level.INTER)
    return shuffled, decode, encode, Step(Task.COMM2_C, Routine.ALL_GATHER, Level.INTER)


SCHEMES: dict[str, Callable[[Device], Option]] = {
    "Inter Allgather": inter_all_gather,
    "Inter Alltoall": inter_all_to_all,
    "Alltoall+Alltoall": all_to_all_twice,
}
"""Compression schemes by their names in the ablation."""


def uncompressed(question: Question) -> Integers:
    """FP32: all tensors hierarchically, uncompressed."""
    return question.everywhere(FP32)


def byteps_compress(question: Question) -> Integers:
    """BytePS-Compress: processors compress large tensors between servers."""
    large = question.model.sizes_bytes >= SMALLEST_FOR_BYTEPS_BYTES
    return np.where(large, question.everywhere(inter_all_to_all(Device.CPU)), uncompressed(question))


def hitopkcomm(question: Question) -> Integers:
    """HiTopKComm: GPUs compress every tensor between servers."""
    return question.everywhere(inter_all_gather(Device.GPU))


def hipress(question: Question) -> Integers:
    """HiPress: compress each tensor between servers or not, by its isolated time."""
    options = (FP32, inter_all_gather(Device.GPU), inter_all_to_all(Device.GPU))
    return fastest_by_itself(question, np.array([question.table.columns[one] for one in options]))


def myopic(question: Question) -> Integers:
    """Choose for each tensor the option with the least total time of its operations."""
    return fastest_by_itself(question, np.arange(len(question.options)))


def fastest_by_itself(question: Question, columns: Integers) -> Integers:
    """Choose for each tensor, among some columns, the least total time of operations; ties: the first."""
    fastest = columns[question.table.chains.isolated[:, columns].argmin(axis=1)]
    return np.asarray(fastest[question.table.size_of], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Baseline:
    """A published system or rule. ``needs``: options that it requires."""

    name: str
    choose: Callable[[Question], Integers]
    needs: tuple[Option, ...]

    def available(self, question: Question) -> bool:
        """Whether the question has the options that it needs."""
        return all(option in question.table.columns for option in self.needs)


BASELINES = (
    Baseline("FP32", uncompressed, (FP32,)),
    Baseline("BytePS-Compress", byteps_compress, (FP32, inter_all_to_all(Device.CPU))),
    Baseline("HiTopKComm", hitopkcomm, (inter_all_gather(Device.GPU),)),
    Baseline("HiPress", hipress, (FP32, inter_all_gather(Device.GPU), inter_all_to_all(Device.GPU))),
    Baseline("Myopic", myopic, ()),
)
"""Baselines in tie-breaking order."""
