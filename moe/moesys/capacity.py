"""The fewest devices that hold a model in device memory, host memory and files (MoESys, equation 1).

A *device* is a server with its GPUs. Training is Adam in mixed precision, so a parameter has 16 bytes of
states. Dense states lie on GPUs, sliced over all ranks. Of sparse states, files hold the 12 bytes of each
parameter in FP32, host memory holds all 16 bytes of the active parameters, and device memory holds weights
and gradients of the active experts of one layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from moe.moesys.checks import check_at_least, check_not_negative, check_positive, check_share
from moe.moesys.choices import Tier
from moe.moesys.sizes import ModelSizes

#: Bytes of a parameter: weight and gradient in half precision, master weight, momentum and variance in FP32.
STATE_BYTES = 16
#: Master weight, momentum and variance. The half-precision weight is derived from the master weight.
FILE_BYTES = 12
WEIGHT_BYTES = 2
#: The search ends at this number of devices.
MAX_DEVICES = 1 << 20
#: Share of device memory that states and activations may fill if all states are on GPUs.
USABLE_DEVICE_MEMORY = 0.95


ALL_TIERS = frozenset(Tier)
ONLY_GPUS = frozenset({Tier.GPU})


@dataclass(frozen=True, slots=True)
class DeviceCapacity:
    """Capacity of one server.

    Attributes:
        gpu_bytes: device memory of all its GPUs together.
        cpu_bytes: host memory.
        ssd_bytes: disk.
        gpus: number of its GPUs.

    Raises:
        ValueError: device memory is not above 0, another capacity is negative, or there is no GPU.
    """

    gpu_bytes: float
    cpu_bytes: float
    ssd_bytes: float
    gpus: int = 8

    def __post_init__(self) -> None:
        check_positive("gpu_bytes", self.gpu_bytes)
        check_not_negative("cpu_bytes", self.cpu_bytes)
        check_not_negative("ssd_bytes", self.ssd_bytes)
        check_at_least("gpus", self.gpus)

    def of(self, tier: Tier) -> float:
        """Return the bytes of a tier."""
        return {Tier.GPU: self.gpu_bytes, Tier.CPU: self.cpu_bytes, Tier.SSD: self.ssd_bytes}[tier]


@dataclass(frozen=True, slots=True)
class TrainingDemands:
    """Demands of training besides the states of the model.

    Attributes:
        alpha: share of the sparse parameters that a step activates.
        lookahead: layers that are fetched ahead.
        activation_bytes: device memory for activations on each GPU.
        free_disk: share of a disk that stays free. Nearly full SSDs slow down and wear out.
        strict_paper: whether to use equation 1 as published, without fetched layers, gathered dense layers,
            activations, uneven experts and free disk.

    Raises:
        ValueError: a share is outside of its range, or a value is negative.
    """

    alpha: float = 1.0
    lookahead: int = 1
    activation_bytes: float = 0.0
    free_disk: float = 0.10
    strict_paper: bool = False

    def __post_init__(self) -> None:
        check_share("alpha", self.alpha)
        check_at_least("lookahead", self.lookahead, 0)
        check_not_negative("activation_bytes", self.activation_bytes)
        if not 0.0 <= self.free_disk < 1.0:
            raise ValueError(f"free_disk is {self.free_disk}; it must be at least 0 and below 1")

    @property
    def active_bytes_on_gpu(self) -> float:
        """Bytes on GPUs for each active parameter of one layer: weight and gradient, and the weights of the
        layers that are fetched ahead."""
        return 2.0 * WEIGHT_BYTES + (0.0 if self.strict_paper else WEIGHT_BYTES * self.lookahead)

    def fixed_bytes_on_gpu(self, sizes: ModelSizes) -> float:
        """Return the bytes on each GPU that do not depend on the number of GPUs: gathered dense layers and
        activations."""
        if self.strict_paper:
            return 0.0
        gathered = WEIGHT_BYTES * (self.lookahead + 1) * sizes.dense / sizes.layers
        return gathered + self.activation_bytes

    @property
    def usable_disk(self) -> float:
        """Share of a disk that files may fill."""
        return 1.0 if self.strict_paper else 1.0 - self.free_disk


@dataclass(frozen=True, slots=True)
class Fit:
    """The fewest devices that hold a model.

    Attributes:
        devices: their number; None if no number is enough.
        binding: the tier that needs the most devices.
        by_tier: devices that each tier needs; None if no number is enough.
        needed_bytes: bytes of each tier on all devices together.
        fullest_bytes: bytes of each tier on the fullest device.
    """

    devices: int | None
    binding: Tier
    by_tier: dict[Tier, int | None]
    needed_bytes: dict[Tier, float]
    fullest_bytes: dict[Tier, float]


def fit(
    sizes: ModelSizes,
    device: DeviceCapacity,
    demands: TrainingDemands,
    tiers: frozenset[Tier] = ALL_TIERS,
) -> Fit:
    """Return the fewest devices that hold a model, and the tier that binds.

    Args:
        tiers: the tiers that may hold states. Without files, host memory holds all sparse states; without
            host memory, GPUs hold them.

    Raises:
        ValueError: tiers cannot be used together.
    """
    check_tiers(tiers)
    by_tier = {tier: _fewest(partial(_fits, tier, sizes, device, demands, tiers)) for tier in Tier}
    binding = max(Tier, key=lambda tier: MAX_DEVICES + 1 if (count := by_tier[tier]) is None else count)
    shown = by_tier[binding] or 1
    return Fit(
        devices=by_tier[binding],
        binding=binding,
        by_tier=by_tier,
        needed_bytes={tier: needed_bytes(tier, shown, sizes, device.gpus, demands, tiers) for tier in Tier},
        fullest_bytes={tier: fullest_bytes(tier, shown, sizes, device.gpus, demands, tiers) for tier in Tier},
    )


def check_tiers(tiers: frozenset[Tier]) -> None:
    """Raise ValueError if tiers cannot be used together."""
    if Tier.GPU not in tiers:
        raise ValueError("tiers lacks gpu; dense parameters lie on GPUs")
    if Tier.SSD in tiers and Tier.CPU not in tiers:
        raise ValueError("tiers has ssd without cpu; states reach files through host memory")


def needed_bytes(
    tier: Tier, devices: int, sizes: ModelSizes, gpus: int, demands: TrainingDemands, tiers: frozenset[Tier]
) -> float:
    """Return the bytes of a tier on all devices together. `gpus`: number of GPUs of a device."""
    if tier is Tier.GPU:
        fixed = demands.fixed_bytes_on_gpu(sizes) * gpus * devices
        return STATE_BYTES * sizes.dense + _sparse_on_gpu(sizes, demands, tiers) * sizes.sparse + fixed
    if tier not in tiers:
        return 0.0
    if tier is Tier.CPU:
        return STATE_BYTES * (demands.alpha if Tier.SSD in tiers else 1.0) * sizes.sparse
    return FILE_BYTES * sizes.sparse


def fullest_bytes(
    tier: Tier, devices: int, sizes: ModelSizes, gpus: int, demands: TrainingDemands, tiers: frozenset[Tier]
) -> float:
    """Return the bytes of a tier on the device that has the most.

    If the ranks do not divide the experts, the first ranks have one expert more. All GPUs of a device count
    as the fullest one, so each of them fits. The published form counts even shares.
    """
    if demands.strict_paper:
        return needed_bytes(tier, devices, sizes, gpus, demands, tiers) / devices
    ranks = gpus * devices
    if tier is Tier.GPU:
        largest_share = -(-sizes.experts // ranks) / sizes.experts
        sparse = _sparse_on_gpu(sizes, demands, tiers) * sizes.sparse * largest_share
        return gpus * (STATE_BYTES * sizes.dense / ranks + sparse + demands.fixed_bytes_on_gpu(sizes))
    hosted = sum(-(-(sizes.experts - rank) // ranks) for rank in range(min(gpus, sizes.experts)))
    return needed_bytes(tier, devices, sizes, gpus, demands, tiers) * hosted / sizes.experts


def fewest_gpus_without_tiers(
    sizes: ModelSizes, gpu_bytes: float, activation_bytes: float, max_gpus: int
) -> int | None:
    """Return the fewest GPUs that hold all states, with dense states on every GPU and experts spread evenly.

    None if `max_gpus` are not enough.

    Args:
        gpu_bytes: device memory of one GPU.
    """
    check_positive("gpu_bytes", gpu_bytes)
    check_not_negative("activation_bytes", activation_bytes)
    check_at_least("max_gpus", max_gpus)
    room = USABLE_DEVICE_MEMORY * gpu_bytes - activation_bytes - STATE_BYTES * sizes.dense
    for gpus in range(1, min(sizes.experts, max_gpus) + 1):
        if sizes.experts % gpus == 0 and STATE_BYTES * sizes.sparse / gpus <= room:
            return gpus
    return None


def _fits(
    tier: Tier,
    sizes: ModelSizes,
    device: DeviceCapacity,
    demands: TrainingDemands,
    tiers: frozenset[Tier],
    devices: int,
) -> bool:
    usable = device.of(tier) * (demands.usable_disk if tier is Tier.SSD else 1.0)
    return fullest_bytes(tier, devices, sizes, device.gpus, demands, tiers) <= usable


def _sparse_on_gpu(sizes: ModelSizes, demands: TrainingDemands, tiers: frozenset[Tier]) -> float:
    """Return the bytes on GPUs for each sparse parameter of the model."""
    if Tier.CPU not in tiers:
        return STATE_BYTES
    return demands.active_bytes_on_gpu * demands.alpha / sizes.layers


def _fewest(fits: Callable[[int], bool]) -> int | None:
    """Return the smallest number that fits. If a number fits, all larger ones do."""
    high = 1
    while not fits(high):
        high *= 2
        if high > MAX_DEVICES:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
