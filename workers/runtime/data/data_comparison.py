"""Compares the first samples of a job's data set across its workers, and with those of its first generation.

With a data set that depends on the worker, results would depend on the number of workers, although the digest
of the order of samples stays the same. Such a job is refused before it trains.
"""

from __future__ import annotations

import logging
import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from punctual.randomness import enter_iteration
from workers.runtime.data.batches import KeyedDataset, accept_termination, dataset_size
from workers.runtime.data.sample_digests import SampleDigest, digest_sample
from workers.runtime.data.sample_order import SampleOrder
from workers.runtime.failures import WorkerFailureError
from workers.runtime.process_group import sum_beside

_log = logging.getLogger(__name__)

#: SAMPLES are compared, fewer if fetching takes longer than SECONDS, none if it exceeds LONGEST_SECONDS.
SAMPLES = 8
SECONDS = 2.0
LONGEST_SECONDS = 10.0
#: Version of the format in a state.
_FORMAT = 1
_WAY_OUT = (
    "it may depend on the hyperparameters and data_path() alone (sort what os.listdir, glob or a set gives; "
    "seed generators of your own)"
)
_FETCHED_TWICE = (
    "__getitem__ may draw from the global generators of torch, random and numpy alone, which are seeded for "
    "each sample (one of your own is made there: numpy.random.default_rng(numpy.random.randint(2**31)))"
)


@dataclass(frozen=True)
class FirstSamples:
    """The first samples as one process fetched them.

    Attributes:
        size: number of samples in the data set.
        indices: the job's first samples, in its order.
        digests: of the samples that were fetched.
        unsteady: place of the first sample that differed when it was fetched again; None if none did.
    """

    size: int
    indices: tuple[int, ...] = ()
    digests: tuple[SampleDigest, ...] = ()
    unsteady: int | None = None

    def to_state(self) -> dict[str, Any]:
        """Return the size and digests as kept in a state."""
        digests = [[each.exact, each.projection, each.norm] for each in self.digests]
        return {"format": _FORMAT, "size": self.size, "digests": digests}


def fetch_first_samples(
    dataset: Any, seed: int, *, seconds: float = SECONDS, longest_seconds: float = LONGEST_SECONDS
) -> FirstSamples:
    """Fetch the job's first samples, each twice, as in iteration 0.

    A forked process fetches them, so counters, caches and files of the data set, and this process's
    generators, do not change. It stops at a sample that cannot be fetched; training will report the error.

    Args:
        seconds: time after which no further sample is started.
        longest_seconds: time after which fetching is aborted.

    Raises:
        WorkerFailureError: the data set has no length, or is empty.
    """
    size = dataset_size(dataset)
    indices = tuple(SampleOrder(size, min(SAMPLES, size), seed).global_batch(0).tolist())
    forking = multiprocessing.get_context("fork")
    receiving, sending = forking.Pipe(duplex=False)
    process = forking.Process(
        target=_fetch, args=(KeyedDataset(dataset, seed), indices, seconds, sending), daemon=True
    )
    digests: list[SampleDigest] = []
    unsteady = None
    ends_at = time.monotonic() + longest_seconds
    try:
        process.start()
        sending.close()
        while receiving.poll(max(0.0, ends_at - time.monotonic())):
            digest, steady = receiving.recv()
            if not steady and unsteady is None:
                unsteady = len(digests)
            digests.append(digest)
    except EOFError:
        pass
    except OSError as error:
        _log.info("the first samples are not compared: %s", error)
        return FirstSamples(size, indices)
    finally:
        receiving.close()
    process.kill()
    process.join()
    return FirstSamples(size, indices, tuple(digests), unsteady)


def _fetch(dataset: KeyedDataset, indices: Sequence[int], seconds: float, sending: Connection) -> None:
    """Send each sample's digest, and whether a second fetch gave the same; runs in the forked process."""
    accept_termination(0)
    torch.set_num_threads(1)
    begun = time.monotonic()
    for index in indices:
        enter_iteration(dataset.seed, 0, (index,))
        try:
            first, again = (digest_sample(dataset.fetch_alone(index, 0)) for _ in range(2))
        except BaseException:  # noqa: BLE001 - the function's code: training calls it again and reports it
            return
        sending.send((first, first.bits == again.bits))
        if time.monotonic() - begun > seconds:
            return


def compare_workers(
    found: FirstSamples, *, rank: int, world_size: int, group: dist.ProcessGroup | None = None
) -> None:
    """Compare the first samples of all ranks; all ranks call this together.

    Raises:
        WorkerFailureError: on every rank, with the same message, if the data sets differ.
    """
    # Gathers by a sum: each rank fills its own row of the table.
    table = torch.zeros(world_size, 3 + 3 * SAMPLES, dtype=torch.float64)
    row = row_of(found)
    table[rank, : len(row)] = torch.tensor(row, dtype=torch.float64)
    work = sum_beside(table, group) if world_size > 1 else None
    if work is not None:
        work.wait()
    compare_rows(table, found.indices)


def row_of(found: FirstSamples) -> list[float]:
    """Return the first samples of a process as numbers."""
    numbers = [value for each in found.digests for value in (each.exact, each.projection, each.norm)]
    unsteady = -1 if found.unsteady is None else found.unsteady
    return [found.size, len(found.digests), unsteady, *numbers]


def compare_rows(table: Tensor, indices: Sequence[int]) -> None:
    """Compare the ranks' rows.

    Raises:
        WorkerFailureError: a rank's samples differ from rank 0's, or from its own second fetch.
    """
    all_found = [_from_row(row) for row in table.tolist()]
    for other, theirs in enumerate(all_found):
        if theirs.unsteady is not None:
            raise _refused(
                f"sample {indices[theirs.unsteady]} is another one when it is fetched again: {_FETCHED_TWICE}"
            )
        problem = _difference(all_found[0], theirs, indices)
        if problem is not None:
            raise _refused(f"{problem} on worker {other} than on worker 0: {_WAY_OUT}")


def compare_generations(found: FirstSamples, kept: Any) -> dict[str, Any]:
    """Compare with the samples of earlier generations in the job's state; return the state's new value.

    Raises:
        WorkerFailureError: the data set has changed.
    """
    if not isinstance(kept, dict) or kept.get("format") != _FORMAT:
        return found.to_state()
    earlier = FirstSamples(kept["size"], digests=tuple(SampleDigest(*numbers) for numbers in kept["digests"]))
    problem = _difference(earlier, found, found.indices)
    if problem is not None:
        raise _refused(f"{problem} now than in the iterations that the job has done: {_WAY_OUT}")
    return kept if len(earlier.digests) >= len(found.digests) else found.to_state()


def _difference(one: FirstSamples, other: FirstSamples, indices: Sequence[int]) -> str | None:
    """Return the first difference among samples that both have fetched, as the beginning of a sentence."""
    if one.size != other.size:
        return f"the data set has another length ({other.size} and not {one.size})"
    for place, (first, second) in enumerate(zip(one.digests, other.digests, strict=False)):
        if not first.is_like(second):
            return f"sample {indices[place]} of the data set is another one"
    return None


def _from_row(row: Sequence[float]) -> FirstSamples:
    size, count, unsteady, *numbers = row
    digests = tuple(
        SampleDigest(int(numbers[at]), numbers[at + 1], numbers[at + 2]) for at in range(0, 3 * int(count), 3)
    )
    return FirstSamples(int(size), (), digests, None if unsteady < 0 else int(unsteady))


def _refused(problem: str) -> WorkerFailureError:
    return WorkerFailureError("function_error", f"init_dataset(): {problem}")
