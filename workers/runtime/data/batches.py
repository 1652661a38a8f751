"""Local batches: a rank's share of the global batch, loaded with randomness that survives a rescale."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from copy import copy
from dataclasses import dataclass, fields, is_dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from punctual.randomness import derive_seed, enter_iteration, seed_generators
from workers.runtime.data.sample_order import SampleOrder
from workers.runtime.failures import WorkerFailureError, blaming_the_function, failure_of


@dataclass(frozen=True)
class LocalBatch:
    """One rank's samples in one iteration.

    Attributes:
        size: samples that count; 0 for a rank without samples in this batch (it computes one sample with
            weight 0, as every rank must take part in the gradients' synchronisation).
        weight: factor of the local mean loss, n_local * world_size / global_batch_size, so that the mean over
            ranks is the mean over the global batch.
        first_place: place of the first sample in the global batch.
    """

    #: The samples, as the function's collate function returned them.
    content: Any
    #: Indices of this rank's samples in the data set.
    indices: tuple[int, ...]
    size: int
    weight: float
    first_place: int
    #: Indices of the samples of the global batch.
    global_indices: Tensor


class KeyedDataset(Dataset[Any]):
    """The function's data set, each sample drawn under generators keyed by sample and iteration."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self.dataset = dataset
        self.seed = seed
        # Check the class: a wrapper that delegates attributes would show the inner data set's method.
        many = hasattr(type(dataset), "__getitems__")
        self._fetch_many: Callable[[list[int]], Any] | None = dataset.__getitems__ if many else None
        #: Whether `__getitems__` has drawn random numbers.
        self._draws = False

    def __getitem__(self, key: tuple[int, tuple[int, ...]]) -> list[Any]:
        """Return the samples of one local batch; `key` is the iteration and the samples' indices."""
        iteration, indices = key
        enter_iteration(self.seed, iteration, indices)
        if self._fetch_many is None:
            samples = [self.fetch_alone(index, iteration) for index in indices]
        else:
            samples = self._fetch_together(self._fetch_many, indices, iteration)
        # Draws in `collate` must not depend on draws of the last sample.
        seed_generators(derive_seed(self.seed, "collate", indices[0], iteration))
        return samples

    def fetch_alone(self, index: int, iteration: int) -> Any:
        """Return one sample as drawn in iteration `iteration`; with `__getitems__`, its list of this one."""
        seed_generators(derive_seed(self.seed, "sample", index, iteration))
        return self.dataset[index] if self._fetch_many is None else self._fetch_many([index])

    def _fetch_together(
        self, fetch: Callable[[list[int]], Any], indices: tuple[int, ...], iteration: int
    ) -> list[Any]:
        """Return the samples of a data set that fetches several at once, such as every `Subset`.

        If it draws random numbers, each sample is fetched alone, as generators cannot be seeded in between.
        """
        if not self._draws:
            seed_generators(self.seed)
            undrawn = _draw()
            seed_generators(self.seed)
            found = list(fetch(list(indices)))
            if _draw() == undrawn:
                return found
            if len(found) != len(indices):
                raise TypeError(
                    f"__getitems__ draws random numbers and returned {len(found)} for {len(indices)} indices:"
                    " it must return one sample for each, or draw from punctual.sample_generator(index) alone"
                )
            self._draws = True
        return [self.fetch_alone(index, iteration)[0] for index in indices]


def _draw() -> tuple[float, ...]:
    """Return the next number of each global generator."""
    return float(torch.rand(())), random.random(), np.random.random()  # noqa: NPY002


@dataclass(frozen=True)
class _Failed:
    """Why a data worker could not load a batch; sent in the batch's place."""

    reason: str
    #: The reason in a sentence.
    message: str
    #: Traceback of the user's code.
    traceback_text: str


class LoadedApart(Dataset[Any]):
    """Batches for data workers. An error of the function is returned with its own traceback; PyTorch would
    wrap it in a message about its process."""

    def __init__(self, keyed: KeyedDataset, collate: Callable[[list[Any]], Any]) -> None:
        self._keyed = keyed
        self._collate = collate
        self._sends = False

    def __getitem__(self, key: tuple[int, tuple[int, ...]]) -> Any:
        """Return the local batch, or a `_Failed`."""
        try:
            batch = self._collate(self._keyed[key])
            if not self._sends:
                self._try_to_send(batch)
            return batch
        except WorkerFailureError as error:
            failure = error
        except BaseException as error:  # noqa: BLE001 - raised again where batches are trained
            failure = failure_of("the data set", error)
        return _Failed(failure.reason, failure.message, failure.traceback_text)

    def _try_to_send(self, batch: Any) -> None:
        """Raise if a batch cannot be pickled: PyTorch would wait for it for ever."""
        try:
            ForkingPickler.dumps(batch)
        except Exception as error:
            raise WorkerFailureError(
                "function_error",
                f"the data set: a batch cannot be sent by the process that loaded it ({error}): make it of "
                "tensors, numbers, strings, lists and dicts, or load without data_workers",
            ) from error
        self._sends = True


class BatchLoader:
    """Loads the local batches of one rank, in the training process or in `data_workers` processes ahead of
    it."""

    def __init__(
        self,
        dataset: Any,
        collate: Callable[[list[Any]], Any],
        order: SampleOrder,
        *,
        rank: int,
        world_size: int,
        device: torch.device,
        data_workers: int = 0,
    ) -> None:
        self._keyed = KeyedDataset(dataset, order.seed)
        self._collate = collate
        self._order = order
        self._rank = rank
        self._world_size = world_size
        self._device = device
        self._data_workers = data_workers
        self._ahead: Iterator[Any] | None = None
        self._next_iteration = -1
        self._ahead_until: int | None = None

    def first_of(self, workers: int) -> BatchLoader:
        """Return a loader for the busiest of `workers` workers: the first, unless the order names another."""
        return BatchLoader(
            self._keyed.dataset, self._collate, self._order, rank=self._order.busiest_rank(workers),
            world_size=workers, device=self._device,
        )  # fmt: skip

    def load(self, iteration: int) -> LocalBatch:
        """Return the local batch of `iteration`, on the rank's device.

        Raises:
            WorkerFailureError: the data set or `collate` raised.
        """
        indices, first, size, everything = _share(self._order, self._rank, self._world_size, iteration)
        with blaming_the_function("the data set"):
            content = move_to(self._content(iteration, indices), self._device)
        return LocalBatch(
            content=content,
            indices=indices,
            size=size,
            weight=size * self._world_size / self._order.global_batch_size,
            first_place=first,
            global_indices=everything,
        )

    def _content(self, iteration: int, indices: tuple[int, ...]) -> Any:
        if self._data_workers == 0:
            return self._collate(self._keyed[(iteration, indices)])
        if self._ahead is None or iteration != self._next_iteration or iteration == self._ahead_until:
            self._ahead = iter(self._start_data_workers(iteration))
        self._next_iteration = iteration + 1
        content = next(self._ahead)
        if isinstance(content, _Failed):
            raise WorkerFailureError(content.reason, content.message, content.traceback_text)
        return content

    def _start_data_workers(self, iteration: int) -> DataLoader[Any]:
        # The closure must not hold `self`: in a cycle with the iterator, the processes would outlive the
        # loader until garbage collection, which then waits five seconds for each of them.
        order, rank, world_size = self._order, self._rank, self._world_size
        self._ahead_until = last = order.known_until(iteration)

        def keys() -> Iterator[tuple[int, tuple[int, ...]]]:
            coming = iteration
            while coming != last:
                yield coming, _share(order, rank, world_size, coming)[0]
                coming += 1

        return DataLoader(
            LoadedApart(self._keyed, self._collate),
            batch_size=None,
            sampler=keys(),
            num_workers=self._data_workers,
            collate_fn=_as_it_is,
            worker_init_fn=accept_termination,
            multiprocessing_context="fork",
        )


def _share(
    order: SampleOrder, rank: int, world_size: int, iteration: int
) -> tuple[tuple[int, ...], int, int, Tensor]:
    """Return a rank's sample indices, the place of the first, how many count, and all ranks' indices."""
    everything = order.global_batch(iteration)
    places = order.local_places(rank, world_size)
    shown = everything[places] if len(places) else everything[:1]
    return tuple(shown.tolist()), int(places[0]) if len(places) else 0, len(places), everything


def _as_it_is(batch: Any) -> Any:
    return batch


def accept_termination(_worker: int) -> None:
    """Unblock SIGTERM in a data worker: the training process blocks it for a dedicated thread."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def move_to(content: Any, device: torch.device) -> Any:
    """Move the tensors of a batch to `device`: in lists, tuples, mappings of any type, and data classes,
    however nested.

    Objects with a method `to`, such as packed sequences and the batches of tokenizers, move themselves.
    """
    if device.type == "cpu":
        return content
    if isinstance(content, Tensor):
        return content.to(device, non_blocking=True)
    if callable(getattr(content, "to", None)):
        return content.to(device)
    if isinstance(content, Mapping):
        return _with_values(content, {key: move_to(value, device) for key, value in content.items()})
    if is_dataclass(content) and not isinstance(content, type):
        moved = copy(content)  # its constructor may take other arguments than its fields
        for field in fields(content):
            object.__setattr__(moved, field.name, move_to(getattr(content, field.name), device))
        return moved
    if isinstance(content, tuple) and hasattr(content, "_fields"):
        return type(content)(*(move_to(value, device) for value in content))
    if isinstance(content, list | tuple):
        return type(content)(move_to(value, device) for value in content)
    return content


def _with_values(mapping: Mapping[Any, Any], values: dict[Any, Any]) -> Any:
    """Return a mapping of the same type with other values; a plain dict if the type is immutable."""
    if not isinstance(mapping, MutableMapping):
        return values
    filled = copy(mapping)
    filled.update(values)
    return filled


def dataset_size(dataset: Any) -> int:
    """Return the number of samples of a data set.

    Raises:
        WorkerFailureError: it has no length, or is empty.
    """
    with blaming_the_function("init_dataset()"):
        size = len(dataset)
    if size < 1:
        raise WorkerFailureError("function_error", "init_dataset(): the data set is empty")
    return size
