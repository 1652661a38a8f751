"""Which library carries tensors between ranks."""

from __future__ import annotations

from workers.runtime.process_group import backend_for


def test_ranks_with_a_gpu_each_use_nccl_and_those_that_share_one_do_not() -> None:
    assert backend_for([]) == "gloo"
    assert backend_for(["a"]) == backend_for(["a", "b"]) == "cpu:gloo,cuda:nccl"
    assert backend_for(["a", "b", "a"]) == "cpu:gloo,cuda:gloo"
