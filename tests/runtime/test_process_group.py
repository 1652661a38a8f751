"""Which backend carries tensors between ranks."""

from __future__ import annotations

from workers.runtime.process_group import backend_for


def test_nccl_is_used_only_if_every_rank_has_its_own_gpu() -> None:
    assert backend_for([]) == "gloo"
    assert backend_for(["a"]) == backend_for(["a", "b"]) == "cpu:gloo,cuda:nccl"
    assert backend_for(["a", "b", "a"]) == "cpu:gloo,cuda:gloo"
