"""Baselines: what other systems choose, as strategies of the same question (Espresso 4.6; spec. 2.7)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from communication.espresso.options import Level, Option, Routine, Step, Task
from communication.espresso.question import Question
from communication.profiles.arrays import Integers
from communication.profiles.codec import Device

SMALLEST_FOR_BYTEPS_BYTES = 65_536
"""Smaller tensors BytePS-Compress leaves uncompressed."""

_SCATTER = Step(Task.COMM1, Routine.REDUCE_SCATTER, Level.INTRA)
_REDUCE_ALL = Step(Task.COMM, Routine.ALL_REDUCE, Level.INTER)
_GATHER = Step(Task.COMM2, Routine.ALL_GATHER, Level.INTRA)

FP32: Option = (_SCATTER, _REDUCE_ALL, _GATHER)
"""Hierarchical, without compression."""


def _codec(device: Device) -> tuple[Step, Step]:
    return Step(Task.COMP, Routine.ENCODE, None, device), Step(Task.DECOMP, Routine.DECODE, None, device)


def inter_all_gather(device: Device) -> Option:
    """Compressed between servers alone, everybody's payloads to everybody."""
    encode, decode = _codec(device)
    return _SCATTER, encode, Step(Task.COMM_C, Routine.ALL_GATHER, Level.INTER), decode, _GATHER


def inter_all_to_all(device: Device) -> Option:
    """Compressed between servers alone: parts are shuffled, decoded, summed, encoded anew and distributed."""
    encode, decode = _codec(device)
    return _SCATTER, encode, *_between_in_two_steps(device), decode, _GATHER


def all_to_all_twice(device: Device) -> Option:
    """Compressed before the exchange within servers, and anew before the one between them."""
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
"""Ways to compress, by the names of the ablation."""


def uncompressed(question: Question) -> Integers:
    """FP32: every tensor through the hierarchy as it is."""
    return question.everywhere(FP32)


def byteps_compress(question: Question) -> Integers:
    """BytePS-Compress: processors compress between servers, whatever is not small."""
    large = question.model.sizes_bytes >= SMALLEST_FOR_BYTEPS_BYTES
    return np.where(large, question.everywhere(inter_all_to_all(Device.CPU)), uncompressed(question))


def hitopkcomm(question: Question) -> Integers:
    """HiTopKComm: GPUs compress every tensor between servers."""
    return question.everywhere(inter_all_gather(Device.GPU))


def hipress(question: Question) -> Integers:
    """HiPress: for each tensor, compressed or not between servers, what takes less by itself."""
    options = (FP32, inter_all_gather(Device.GPU), inter_all_to_all(Device.GPU))
    return fastest_by_itself(question, np.array([question.table.columns[one] for one in options]))


def myopic(question: Question) -> Integers:
    """For each tensor the option whose operations, one after the other, take least."""
    return fastest_by_itself(question, np.arange(len(question.options)))


def fastest_by_itself(question: Question, columns: Integers) -> Integers:
    """For each tensor the one of some columns whose operations take least in all; of equal ones the first."""
    fastest = columns[question.table.chains.isolated[:, columns].argmin(axis=1)]
    return np.asarray(fastest[question.table.size_of], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Baseline:
    """A published system or rule. ``needs``: options without which it cannot be asked for."""

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
"""In the order in which they win ties."""
