"""Randomness that does not depend on how many workers share a batch.

The number of workers of a job changes while it trains, so "the random numbers of worker 2" mean nothing.
Punctual keys randomness by the *sample* and the *iteration* instead: whichever worker happens to compute a
sample draws the same numbers for it.

* Inside ``dataset[i]`` the generators of ``torch``, ``random`` and ``numpy`` are already seeded that way.
* Inside ``train()`` use :func:`sample_rand`, :func:`sample_randn` or :func:`sample_generator` where the
  result must be the same after a change of workers; ordinary random calls work too, but their numbers depend
  on the split.
"""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

#: PYTHONHASHSEED of every process that runs user code, so that sets have one order on all workers. Hashes are
#: fixed when an interpreter starts, which is before a worker's job is known, so it is not the job's seed.
HASH_SEED = "0"

# torch is imported inside the functions, because `import punctual` also serves the command line, which has to
# start fast.


@dataclass
class _IterationContext:
    """The runtime's current computation; one per process."""

    seed: int = 0
    iteration: int = 0
    indices: tuple[int, ...] = ()
    draws: int = 0


_context = _IterationContext()


def derive_seed(*parts: int | str) -> int:
    """Mix numbers and words into a seed of 63 bits that is equal on every machine and Python version."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        encoded = part.encode() if isinstance(part, str) else struct.pack("<q", part)
        digest.update(struct.pack("<I", len(encoded)) + encoded)
    return int.from_bytes(digest.digest(), "little") >> 1


def current_iteration() -> int:
    """Return the current iteration, counted from 0 over the whole job."""
    return _context.iteration


def current_sample_indices() -> tuple[int, ...]:
    """Return the data-set indices of the samples in the batch given to ``train()``, in its order."""
    return _context.indices


def sample_generator(index: int, purpose: str = "") -> torch.Generator:
    """Return a CPU generator for sample `index` in the current iteration.

    Generators for the same sample, iteration and `purpose` give the same numbers.
    """
    import torch

    generator = torch.Generator()
    generator.manual_seed(derive_seed(_context.seed, "generator", purpose, index, _context.iteration))
    return generator


def sample_rand(*shape: int) -> torch.Tensor:
    """Return uniform numbers in [0, 1) of shape ``(samples in the local batch, *shape)``, a row per sample.

    A row depends on its sample, the iteration and the number of calls in this iteration, but not on the split
    of the batch. A dropout that is unaffected by rescaling: ``x * (sample_rand(width) >= 0.1) / 0.9``.
    """
    import torch

    return _rows_of_samples(torch.rand, shape)


def sample_randn(*shape: int) -> torch.Tensor:
    """Return numbers of the standard normal distribution, otherwise as :func:`sample_rand`."""
    import torch

    return _rows_of_samples(torch.randn, shape)


def _rows_of_samples(draw: Callable[..., torch.Tensor], shape: tuple[int, ...]) -> torch.Tensor:
    import torch

    _context.draws += 1
    purpose = f"draw {_context.draws}"
    rows = [draw(*shape, generator=sample_generator(index, purpose)) for index in _context.indices]
    return torch.stack(rows) if rows else torch.empty(0, *shape)


def enter_iteration(seed: int, iteration: int, indices: Sequence[int]) -> None:
    """For the runtime: set the iteration and samples to compute next."""
    _context.seed = seed
    _context.iteration = iteration
    _context.indices = tuple(indices)
    _context.draws = 0


def seed_generators(seed: int) -> None:
    """For the runtime: seed the global generators of ``torch``, ``random`` and ``numpy``."""
    import numpy as np
    import torch

    # torch.manual_seed does the same but takes a hundred times as long, which matters for each sample.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed)
    random.seed(seed)
    # The legacy global generator is the one that users' data sets call.
    np.random.seed(seed & 0xFFFF_FFFF)  # noqa: NPY002
