"""Throughput curves computed from a small model of devices and networks, so that no measured table is needed.

**Synthetic**: every name starts with ``synthetic-`` and nothing here was measured. One iteration of global
batch B on n GPUs takes

    fixed + compute * (1 + spread * log2 n) + max(0, all-reduce - overlap * compute)

compute    = work per sample * (B/n + batch at half speed) / sustained speed; small local batches waste the
             device
all-reduce = 2 (n-1)/n * gradient bytes / bandwidth + 2 (n-1) * latency: a ring, over all of the servers'
             network links if n exceeds one server

The first part falls with n, the second grows: curves rise to a model's ceiling and fall beyond it. A local
batch that does not fit the device's memory has no point. Sizes are of the order of known networks.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

from simulation.workloads.errors import TraceError, listed, quoted
from simulation.workloads.throughputs import Points, ThroughputTable

GPU_COUNTS = (1, 2, 4, 8, 16, 32, 64)
SPREAD_OF_WORKERS = 0.01  # the slowest of n workers sets the pace
OVERLAP = 0.5  # share of the computation that the all-reduce can hide behind
GRADIENT_BYTES_PER_PARAMETER = 2  # exchanged in 16 bits
TRAINING_BYTES_PER_PARAMETER = 16  # weights, gradients and two moments in 32 bits


@dataclass(frozen=True, slots=True)
class DeviceType:
    """One GPU type and its servers. Speed in operations per second, memory in bytes, bandwidth in bytes per
    second."""

    sustained_operations_per_second: float
    memory_bytes: float
    gpus_per_server: int
    bandwidth_in_server: float
    bandwidth_between_servers: float
    latency_in_server_seconds: float
    latency_between_servers_seconds: float


@dataclass(frozen=True, slots=True)
class Network:
    """One model: operations and bytes of one sample (forward and backward), parameters, and its use of a
    device."""

    operations_per_sample: float
    parameters: float
    memory_bytes_per_sample: float
    half_speed_batch: float
    fixed_seconds: float
    global_batch_sizes: tuple[int, ...]


DEVICES = {
    "A100": DeviceType(100e12, 80e9, 8, 200e9, 150e9, 10e-6, 60e-6),
    "V100": DeviceType(40e12, 32e9, 8, 100e9, 50e9, 12e-6, 70e-6),
    "T4": DeviceType(16e12, 16e9, 4, 10e9, 6e9, 20e-6, 100e-6),
}

NETWORKS = {
    "synthetic-convolution-deep": Network(17e9, 24e6, 110e6, 6, 0.012, (64, 128)),
    "synthetic-convolution-residual": Network(24e9, 26e6, 90e6, 3, 0.008, (64, 128, 256)),
    "synthetic-convolution-wide": Network(92e9, 138e6, 130e6, 1, 0.006, (64, 128, 256)),
    "synthetic-decoder": Network(190e9, 124e6, 280e6, 4, 0.015, (128, 256)),
    "synthetic-encoder": Network(85e9, 110e6, 150e6, 8, 0.020, (64, 128)),
    "synthetic-speech": Network(700e9, 40e6, 900e6, 0.5, 0.030, (32, 64)),
}


def iterations_per_second(
    network: Network, device: DeviceType, global_batch_size: int, gpus: int
) -> float | None:
    """Return the throughput on ``gpus`` GPUs; None if they do not divide the batch or it does not fit."""
    if global_batch_size % gpus:
        return None
    local = global_batch_size // gpus
    memory = local * network.memory_bytes_per_sample + TRAINING_BYTES_PER_PARAMETER * network.parameters
    if memory > device.memory_bytes:
        return None
    in_server = gpus <= device.gpus_per_server
    bandwidth = device.bandwidth_in_server if in_server else device.bandwidth_between_servers
    latency = device.latency_in_server_seconds if in_server else device.latency_between_servers_seconds
    compute = (
        network.operations_per_sample
        * (local + network.half_speed_batch)
        / device.sustained_operations_per_second
        * (1 + SPREAD_OF_WORKERS * log2(gpus))
    )
    gradient_bytes = GRADIENT_BYTES_PER_PARAMETER * network.parameters
    all_reduce = 2 * (gpus - 1) / gpus * gradient_bytes / bandwidth + 2 * (gpus - 1) * latency
    return 1.0 / (network.fixed_seconds + compute + max(0.0, all_reduce - OVERLAP * compute))


def synthetic_throughputs(gpu_types: tuple[str, ...] = tuple(DEVICES)) -> ThroughputTable:
    """Return curves of all built-in models on ``gpu_types``. Raises TraceError for an unknown type."""
    table: dict[tuple[str, int], Points] = {}
    for gpu_type in gpu_types:
        device = DEVICES.get(gpu_type)
        if device is None:
            raise TraceError(
                f"no synthetic throughputs for GPU type {quoted(gpu_type)}; known are {listed(list(DEVICES))}"
            )
        for model, network in NETWORKS.items():
            for batch in network.global_batch_sizes:
                rates = {gpus: iterations_per_second(network, device, batch, gpus) for gpus in GPU_COUNTS}
                points = {gpus: rate for gpus, rate in rates.items() if rate is not None}
                if points:
                    table.setdefault((model, batch), {})[gpu_type] = points
    return ThroughputTable("the built-in device model (synthetic, not measured)", table, synthetic=True)
