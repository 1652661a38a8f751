"""Parameters that differ between workers end the job with the name of one."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.communication.hooks.ranks import run_on_ranks
from tests.runtime.training_in_process import Changing, Table, Trained, train
from workers.runtime.parameter_comparison import digests_of

AT = 3


def drift(_function: Changing, model: Table, iteration: int) -> None:
    """Change a trained parameter slightly on one worker."""
    if iteration == AT and dist.get_rank() == 1:
        model.last.bias.data += 1e-5


def drift_of_a_frozen_one(_function: Changing, model: Table, iteration: int) -> None:
    if iteration == AT:
        model.first.weight.data += dist.get_rank()


def drift_of_a_buffer(_function: Changing, model: Table, iteration: int) -> None:
    if iteration == AT:
        model.mask = model.mask + dist.get_rank()


def every_drift() -> dict[str, Trained]:
    return {
        "trained": train(drift, every=1),
        "frozen": train(drift_of_a_frozen_one, every=5),
        "last": train(drift, every=1000),
        "buffer": train(drift_of_a_buffer, every=1),
        "never": train(drift, every=0),
    }


def test_parameters_that_differ_end_the_job_on_all_workers() -> None:
    for outcomes in run_on_ranks(2, every_drift):
        assert outcomes["trained"].refused_after == AT
        assert "the parameter 'last.bias' differs between workers" in outcomes["trained"].message
        assert outcomes["frozen"].refused_after == 4
        assert "the parameter 'first.weight' differs between workers" in outcomes["frozen"].message
        assert "differs between workers after iteration 8" in outcomes["last"].message
        assert not outcomes["buffer"].message + outcomes["never"].message


@pytest.mark.parametrize(
    "values",
    [
        torch.randn(5, 3).t(),
        torch.randn(4).bfloat16(),
        torch.randn(4).half(),
        torch.randn(4).double(),
        torch.randn(4, dtype=torch.complex128),
        torch.randn(4).to(torch.float8_e4m3fn),
        torch.tensor(1.0),
        torch.randn(9)[1:],
        torch.randn(9)[2:],
    ],
    ids=lambda values: str(values.dtype),
)
def test_one_bit_of_any_type_changes_a_digest(values: Tensor) -> None:
    other = values.clone(memory_format=torch.contiguous_format)
    other.view(-1).view(torch.uint8)[0] ^= 1
    empty = torch.empty(0)
    before, after = (digests_of({"a": tensor, "b": empty}).tolist() for tensor in (values, other))
    assert before[0] != after[0]
    assert before[1] == after[1] == 0
    assert digests_of({"a": values.clone(memory_format=torch.contiguous_format)}).tolist() == before[:1]


def test_equal_nans_have_equal_digests() -> None:
    values = torch.tensor([float("nan"), float("inf")])
    assert digests_of({"a": values}).equal(digests_of({"a": values.clone()}))
