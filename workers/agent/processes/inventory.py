"""The server's inventory: GPUs by NVML, declared CPU slots, or CPU slots that emulate a declared
accelerator."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import uuid
from dataclasses import dataclass
from typing import Any

import pynvml

from workers.agent.confinement.sandbox import SandboxMode
from workers.agent.machine.configuration import Configuration
from workers.agent.machine.disk_shares import disk_of_worker
from workers.agent.machine.resource_limits import host_memory_bytes, store_bytes

logger = logging.getLogger(__name__)

_NAMESPACE = uuid.UUID("0b8f0c1e-31a5-4a0e-9f0b-6f3c3f6f2d11")


@dataclass(frozen=True)
class Accelerator:
    """A device for one worker. `device_files`: paths below /dev that a real GPU's worker needs."""

    #: Number of the device on this server.
    index: int
    uuid: str
    kind: str
    memory_bytes: int
    #: Whether its speed and memory are emulated on CPUs.
    emulated: bool
    #: Whether torch uses it through CUDA.
    cuda: bool = False
    device_files: tuple[str, ...] = ()


def find_accelerators(configuration: Configuration) -> tuple[Accelerator, ...]:
    """Return the accelerators to report, in order of their index."""
    if configuration.emulate is None and not configuration.slots and configuration.gpus:
        gpus = _nvml_gpus()
        if gpus:
            return gpus
    return _slots(configuration)


def describe(
    accelerators: tuple[Accelerator, ...],
    sandbox: SandboxMode,
    configuration: Configuration,
    worker_memory_bytes: int,
) -> dict[str, Any]:
    """Return the inventory of protocol 2.1. `worker_memory_bytes`: limit of one worker."""
    emulation = configuration.emulate
    kept_bytes = store_bytes(configuration.memory_store_bytes)
    configuration.data.mkdir(parents=True, exist_ok=True)
    return {
        "gpus": [
            {
                "index": accelerator.index,
                "uuid": accelerator.uuid,
                "kind": accelerator.kind,
                "memory_bytes": accelerator.memory_bytes,
                "emulated": accelerator.emulated,
            }
            for accelerator in accelerators
        ],
        "hostname": socket.gethostname(),
        "cpu_cores": len(os.sched_getaffinity(0)),
        # Memory for recovery points is not available to workers.
        "memory_bytes": max(0, host_memory_bytes() - kept_bytes),
        "memory_store_bytes": kept_bytes,
        "worker_memory_bytes": worker_memory_bytes,
        "disk_free_bytes": shutil.disk_usage(configuration.data).free,
        "worker_disk_bytes": configuration.worker_disk_bytes
        or disk_of_worker(configuration.data, len(accelerators)),
        "sandbox": sandbox,
        "links": None if emulation is None else emulation.links.to_message(),
    }


def _slots(configuration: Configuration) -> tuple[Accelerator, ...]:
    count = configuration.slots or len(os.sched_getaffinity(0))
    emulation = configuration.emulate
    share = host_memory_bytes() // count
    return tuple(
        Accelerator(
            index=index,
            # A slot keeps its id over restarts and re-enrolments.
            uuid=f"SLOT-{uuid.uuid5(_NAMESPACE, f'{configuration.name}/{index}')}",
            kind=emulation.kind if emulation else "cpu",
            memory_bytes=(emulation.memory_bytes or share) if emulation else share,
            emulated=emulation is not None,
        )
        for index in range(count)
    )


def _nvml_gpus() -> tuple[Accelerator, ...]:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        logger.info("no GPUs by NVML (%s): declaring CPU slots", error)
        return ()
    try:
        found = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            minor = pynvml.nvmlDeviceGetMinorNumber(handle)
            found.append(
                Accelerator(
                    index=index,
                    uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
                    kind=str(pynvml.nvmlDeviceGetName(handle)),
                    memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
                    emulated=False,
                    cuda=True,
                    device_files=(
                        f"/dev/nvidia{minor}",
                        "/dev/nvidiactl",
                        "/dev/nvidia-uvm",
                        "/dev/nvidia-uvm-tools",
                        "/dev/nvidia-modeset",
                    ),
                )
            )
        return tuple(found)
    finally:
        pynvml.nvmlShutdown()
