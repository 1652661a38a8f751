"""The agent's inventory of GPUs by NVML equals what torch sees."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from tests.gpu.conftest import ON_THE_CPU

pytestmark = pytest.mark.skipif(ON_THE_CPU, reason="a CPU has no inventory by NVML")


def accelerators() -> Any:
    pytest.importorskip("pynvml")
    inventory = pytest.importorskip("workers.agent.processes.inventory")
    configuration = SimpleNamespace(emulate=None, slots=0, gpus=True, name="here")
    return inventory.find_accelerators(cast("Any", configuration))


def test_the_inventory_lists_the_gpus_of_torch() -> None:
    inventory = accelerators()
    assert len(inventory) >= torch.cuda.device_count() > 0
    assert all(one.cuda and not one.emulated for one in inventory)
    properties = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    by_uuid = {one.uuid.removeprefix("GPU-"): one for one in inventory}
    for seen in properties:
        listed = by_uuid[str(seen.uuid)]
        assert listed.kind.removeprefix("NVIDIA ") in seen.name
        # The driver reserves some of it.
        assert 0.9 * listed.memory_bytes <= seen.total_memory <= listed.memory_bytes


def test_a_gpu_keeps_its_identity_between_inventories() -> None:
    assert accelerators() == accelerators()
