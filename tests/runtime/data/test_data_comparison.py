"""Data that differs between workers, or after a restart, is detected before training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from tests.runtime.conftest import REGRESSION, regression
from workers.runtime.at_home.local_agent import LocalAgent
from workers.runtime.data import data_comparison
from workers.runtime.data.data_comparison import (
    FirstSamples,
    compare_generations,
    compare_workers,
    fetch_first_samples,
)
from workers.runtime.data.sample_digests import digest_sample
from workers.runtime.failures import WorkerFailureError

#: Bounds fetching if a test's machine hangs, not if it is slow.
PATIENCE = 120.0


class _Samples(Dataset[Any]):
    def __init__(self, make: Callable[[int], Any], size: int = 20) -> None:
        self.make, self.size, self.fetched = make, size, 0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        self.fetched += 1
        return self.make(index)


def _found(dataset: Any) -> FirstSamples:
    return fetch_first_samples(dataset, 5, seconds=PATIENCE, longest_seconds=PATIENCE)


def _compare(*samples: FirstSamples) -> None:
    """Compare as ranks with these samples would: here all rows are filled by hand."""
    rows = []
    for rank, mine in enumerate(samples):
        table = torch.zeros(len(samples), 3 + 3 * data_comparison.SAMPLES, dtype=torch.float64)
        row = data_comparison.row_of(mine)
        table[rank, : len(row)] = torch.tensor(row, dtype=torch.float64)
        rows.append(table)
    data_comparison.compare_rows(sum(rows[1:], rows[0]), samples[0].indices)


def test_equal_data_passes_the_comparison() -> None:
    data = TensorDataset(torch.randn(20, 3), torch.arange(20))
    first, second = _found(data), _found(data)
    assert len(first.digests) == data_comparison.SAMPLES
    _compare(first, second)
    recorded = compare_generations(first, None)
    assert compare_generations(second, recorded) == recorded


def test_another_order_of_files_is_refused_naming_a_sample() -> None:
    first, second = (_found(_Samples(names.__getitem__)) for names in ("ab" * 10, "ba" * 10))
    with pytest.raises(WorkerFailureError, match=r"sample \d+ of the data set is another one on worker 1"):
        _compare(first, second)
    with pytest.raises(WorkerFailureError, match="is another one now than in the iterations that"):
        compare_generations(second, compare_generations(first, None))


def test_another_length_is_refused() -> None:
    with pytest.raises(WorkerFailureError, match=r"another length \(19 and not 20\) on worker 2"):
        _compare(*(_found(_Samples(str, size)) for size in (20, 20, 19)))


def test_a_data_set_with_its_own_generator_is_refused_on_one_worker() -> None:
    generator = np.random.default_rng(0)
    digests = _found(_Samples(lambda _: generator.random()))
    with pytest.raises(
        WorkerFailureError, match="another one when it is fetched again: __getitem__ may draw"
    ):
        compare_workers(digests, rank=0, world_size=1)


def test_global_generators_are_seeded_when_samples_are_compared() -> None:
    def noisy(_index: int) -> Any:
        own = np.random.default_rng(np.random.randint(2**31))  # noqa: NPY002
        return torch.randn(20), own.random(3)

    _compare(_found(_Samples(noisy)), _found(_Samples(noisy)))


def test_comparing_leaves_the_data_set_and_generators_alone() -> None:
    dataset, state = _Samples(lambda _: torch.rand(1)), torch.get_rng_state()
    assert len(_found(dataset).digests) == data_comparison.SAMPLES
    assert dataset.fetched == 0
    assert torch.equal(torch.get_rng_state(), state)


def test_as_many_samples_as_both_have_fetched_are_compared() -> None:
    full = _found(TensorDataset(torch.randn(20, 3)))
    short = replace(full, digests=full.digests[:1])
    _compare(full, short)
    assert compare_generations(full, short.to_state()) == full.to_state()


def test_a_sample_that_fails_or_hangs_ends_the_comparison() -> None:
    def fails(index: int) -> int:
        raise ValueError(index)

    digests = _found(_Samples(fails))
    assert digests.digests == ()
    compare_workers(digests, rank=0, world_size=1)
    slow = _Samples(lambda _: torch.multiprocessing.Event().wait())
    assert fetch_first_samples(slow, 5, longest_seconds=0.01).digests == ()


def test_rounding_differences_leave_a_samples_digest_equal() -> None:
    image = torch.rand(3, 64, 64)
    rounded = image * (1 + 1e-6 * torch.rand(3, 64, 64))
    assert digest_sample({"image": image}).is_like(digest_sample({"image": rounded}))
    assert not digest_sample({"image": image}).is_like(digest_sample({"image": image.flip(0)}))
    assert not digest_sample({"image": image}).is_like(digest_sample({"other": image}))


class _Unknown:
    pass


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        (_Unknown(), _Unknown(), True),
        ({1, 2, "c"}, {"c", 2, 1}, True),
        ("/one/box/a.png", "/another/a.png", True),
        ("/one/box/a.png", "/one/box/b.png", False),
        (np.array(["a", "b"]), np.array(["b", "a"]), False),
        (np.array([None, "a"], dtype=object), np.array([None, "b"], dtype=object), False),
        (torch.tensor([float("nan"), 1]), torch.tensor([float("nan"), 1]), True),
        (torch.tensor([1, 2, 3]), torch.tensor([1, 2, 4]), False),
        (torch.eye(3).to_sparse(), (2 * torch.eye(3)).to_sparse(), False),
        (torch.tensor([1 + 2j]), torch.tensor([2 + 1j]), False),
        (np.float32(1), np.float32(2), False),
        ((1, [2.5]), (1, [3.5]), False),
        (True, 1, False),
    ],
)
def test_samples_of_any_type_have_a_digest(one: Any, other: Any, alike: bool) -> None:
    assert digest_sample(one).is_like(digest_sample(other)) == alike


def _of_its_process(tmp_path: Path) -> Path:
    """The regression on a data set whose length differs in each process."""
    source = tmp_path / REGRESSION.name
    text = REGRESSION.read_text().replace("NoisyPoints(200)", "NoisyPoints(200 + os.getpid())")
    source.write_text(text.replace("import sys", "import os\nimport sys"))
    return source


def test_workers_with_other_data_refuse_before_they_train(agent: LocalAgent, tmp_path: Path) -> None:
    generation = agent.start_generation(_of_its_process(tmp_path), regression(), 2)
    for worker in generation.workers:
        event = worker.wait_for_event("failed")
        assert event["reason"] == "function_error"
        assert event["message"].startswith("init_dataset(): the data set has another length (")


def test_a_restart_with_other_data_is_refused(agent: LocalAgent, tmp_path: Path) -> None:
    source, assignment = _of_its_process(tmp_path), regression(iterations=10**6)
    first = agent.start_generation(source, assignment, 1).wait_until_ready().train_from_nothing()
    first.leader.wait_for_event("first_iteration")
    first.goal("suspend")
    point = first.checkpoint_files()
    second = agent.start_generation(source, {**assignment, "generation": 2}, 1).wait_until_ready()
    second.train_from_checkpoint(point)
    message = second.leader.wait_for_event("failed")["message"]
    assert "now than in the iterations that the job has done" in message
