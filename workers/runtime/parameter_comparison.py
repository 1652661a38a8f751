"""Compares the parameters of all workers bit by bit at a fixed period of iterations.

Every rank steps the same optimizer with the same mean gradients. If parameters still differ, something
changes them with data of one worker alone, and the job's result depends on the number of workers. Buffers
are private to each worker and are not compared.
"""

from __future__ import annotations

import hashlib
import logging
import platform
from collections.abc import Collection, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from workers.runtime.failures import WorkerFailureError
from workers.runtime.process_group import sum_beside

_log = logging.getLogger(__name__)

_WORD_BYTES = 8
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class ParameterComparison:
    """Compares the parameters of the ranks of a group after some iterations."""

    def __init__(
        self,
        module: nn.Module,
        *,
        every: int,
        last: int | None,
        device: torch.device,
        world_size: int,
        group: dist.ProcessGroup | None = None,
        without: Collection[str] = (),
    ) -> None:
        """Set the comparison up; all ranks call this together.

        Args:
            every: period in iterations; a generation's first iteration is compared too. 0: never.
            last: the job's last iteration, which is compared too.
            without: names of parameters that not all ranks have.
        """
        self._module, self._last, self._without = module, last, without
        self._world_size, self._group = world_size, group
        self._begins = True
        self._every = every if world_size > 1 else 0
        if self._every and not self._alike(torch.tensor([_processor(device)])).all():
            # They round differently, and so do the optimizer's steps.
            _log.info("workers on processors of several kinds: their parameters are not compared")
            self._every = 0

    def iteration_done(self, iterations: int) -> None:
        """Compare if due; all ranks call this after the same iteration.

        Raises:
            WorkerFailureError: on every rank, if a parameter differs between ranks.
        """
        begins, self._begins = self._begins, False
        if not self._every or not (begins or iterations % self._every == 0 or iterations == self._last):
            return
        named = {name: each for name, each in self._module.named_parameters() if name not in self._without}
        alike = self._alike(digests_of(named)).tolist()
        for name, same in zip(named, alike, strict=True):
            if not same:
                raise WorkerFailureError(
                    "function_error",
                    f"the parameter {name!r} differs between workers after iteration {iterations}: what "
                    "changes parameters beside the optimizer must not depend on the local batch or on random "
                    "numbers; what a worker keeps for itself is a buffer",
                )

    def _alike(self, values: Tensor) -> Tensor:
        """Return which of the integers are equal on all ranks; every rank gets the same result."""
        told = torch.cat([values, values * values])
        work = sum_beside(told, self._group)
        if work is not None:
            work.wait()
        sums, squares = told.split(len(values))
        return (sums == self._world_size * values) & (squares == self._world_size * values * values)


def digests_of(parameters: Mapping[str, Tensor]) -> Tensor:
    """Return, on the CPU, each tensor's sum of 64-bit words of its memory."""
    sums = [_sum_of_words(each.detach()) for each in parameters.values()]
    return torch.stack([one.to(sums[0].device) for one in sums]).cpu() if sums else torch.empty(0).long()


def _sum_of_words(tensor: Tensor) -> Tensor:
    # Sum words, not elements: summing narrower elements takes ten times as long on a CPU.
    flat = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).reshape(-1)
    in_word = _WORD_BYTES // flat.itemsize
    whole = flat.numel() - flat.numel() % in_word
    words = flat[:whole] if flat.storage_offset() % in_word == 0 else flat[:whole].clone()
    rest = flat[whole:].view(_INTEGERS[flat.itemsize])
    return words.view(torch.int64).sum() + rest.sum(dtype=torch.int64)


def _processor(device: torch.device) -> int:
    """Return a number that identifies the kind of processor and the library that step the optimizer."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    digest = hashlib.sha256(f"{name} {torch.__version__}".encode()).digest()
    return int.from_bytes(digest[:5], "little")
