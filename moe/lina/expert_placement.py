"""Which devices host which experts of a layer in inference: replicas for popular experts, several others
packed on one device (Lina 6.2; step I3)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moe.lina.expert_paths import Probabilities

#: Most experts on a device with as many devices as experts (4 in the paper).
MOST_ON_DEVICE = 4
#: Parts of a device below this are rounding errors.
_NEGLIGIBLE = 1e-6


@dataclass(frozen=True)
class ReplicaPlacement:
    """Hosts of the experts of a layer. Each expert has one host or several.

    Attributes:
        hosted: (devices, experts): whether a device hosts an expert.
        shares: (devices, experts): part of a device that is planned for an expert; 0 for an expert without
            estimate.
    """

    hosted: NDArray[np.bool_]
    shares: Probabilities

    @property
    def devices(self) -> int:
        """Number of devices."""
        return int(self.hosted.shape[0])

    @property
    def experts(self) -> int:
        """Number of experts."""
        return int(self.hosted.shape[1])

    @property
    def loads(self) -> Probabilities:
        """Planned load of each device; 1 is its part of the batch."""
        return np.asarray(self.shares.sum(axis=1))

    @property
    def weights(self) -> Probabilities:
        """Proportions in which the hosts of an expert divide its tokens (devices, experts)."""
        is_estimated = self.shares.any(axis=0)
        return np.where(is_estimated, self.shares, self.hosted.astype(np.float64))

    def experts_of(self, device: int) -> tuple[int, ...]:
        """Return the experts that a device hosts, ascending."""
        return tuple(np.flatnonzero(self.hosted[device]).tolist())

    def hosts(self, expert: int) -> tuple[int, ...]:
        """Return the devices that host an expert, ascending."""
        return tuple(np.flatnonzero(self.hosted[:, expert]).tolist())


def even_placement(experts: int, devices: int) -> ReplicaPlacement:
    """Return the placement where nothing is estimated: expert e on device e.

    With more experts than devices, each device hosts a run of consecutive experts; with fewer, consecutive
    devices host the same expert. Runs differ by at most one.

    Raises:
        ValueError: there is no expert or no device.
    """
    _check_sizes(experts, devices)
    hosted = np.zeros((devices, experts), dtype=bool)
    if experts >= devices:
        each = np.arange(experts)
        hosted[each * devices // experts, each] = True
    else:
        each = np.arange(devices)
        hosted[each, each * experts // devices] = True
    return ReplicaPlacement(hosted, np.zeros(hosted.shape))


def place_experts(
    demands: Probabilities, devices: int, *, most_on_device: int | None = None, seed: int = 0
) -> ReplicaPlacement:
    """Return the placement for a popularity. Shares of an expert sum to its demand.

    Whole devices are given first. The remainders follow by first-fit decreasing; those that fit nowhere go
    to the least loaded device. Experts without estimate take the devices that are still empty, or random
    ones. A replica is left out if another expert would have no place.

    Args:
        demands: (experts): devices that each expert needs; 0 without estimate.
        most_on_device: most experts on a device; None for four times an even share.
        seed: chooses the random devices.

    Raises:
        ValueError: a demand is negative or not finite, or the devices have no room for all experts.
    """
    demands = np.asarray(demands, dtype=np.float64)
    if demands.ndim != 1 or not (np.isfinite(demands).all() and (demands >= 0).all()):
        raise ValueError(f"demands are {demands}; they must be numbers of at least 0, one for each expert")
    _check_sizes(len(demands), devices)
    if most_on_device is None:
        most_on_device = MOST_ON_DEVICE * math.ceil(len(demands) / devices)
    if devices * most_on_device < len(demands):
        raise ValueError(
            f"most_on_device is {most_on_device}; {devices} devices must have room for {len(demands)} experts"
        )
    plan = _Plan(len(demands), devices, most_on_device)
    remainders = _place_whole(plan, demands)
    for share, expert in sorted(remainders, key=lambda item: (-item[0], item[1])):
        _place_remainder(plan, expert, share)
    _place_without_estimate(plan, np.random.default_rng(seed))
    if not plan.hosted.any(axis=0).all():
        raise AssertionError("every expert must have a host")
    return ReplicaPlacement(plan.hosted, plan.shares)


def _check_sizes(experts: int, devices: int) -> None:
    for name, value in (("experts", experts), ("devices", devices)):
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")


class _Plan:
    """A placement in the making."""

    def __init__(self, experts: int, devices: int, most_on_device: int) -> None:
        self.hosted = np.zeros((devices, experts), dtype=bool)
        self.shares = np.zeros((devices, experts))
        #: Devices with a whole replica.
        self.is_dedicated = np.zeros(devices, dtype=bool)
        self._most_on_device = most_on_device

    @property
    def is_empty(self) -> NDArray[np.bool_]:
        return np.asarray(~self.hosted.any(axis=1))

    @property
    def has_room(self) -> NDArray[np.bool_]:
        return np.asarray(self.hosted.sum(axis=1) < self._most_on_device)

    def can_add_host(self, expert: int) -> bool:
        """Whether all experts without host still find a place if this one gets another host."""
        if not self.hosted[:, expert].any():
            return True
        places = self._most_on_device * len(self.hosted) - int(self.hosted.sum())
        return places > int((~self.hosted.any(axis=0)).sum())

    def put(self, device: int, expert: int, share: float) -> None:
        self.hosted[device, expert] = True
        self.shares[device, expert] += share


def _place_whole(plan: _Plan, demands: Probabilities) -> list[tuple[float, int]]:
    """Place whole replicas on the first empty devices; return the remainders as shares and experts."""
    remainders: list[tuple[float, int]] = []
    for expert in np.argsort(-demands, kind="stable").tolist():
        whole = math.floor(demands[expert] + _NEGLIGIBLE)
        for _ in range(whole):
            if plan.is_empty.any() and plan.can_add_host(expert):
                device = int(np.argmax(plan.is_empty))
                plan.put(device, expert, 1.0)
                plan.is_dedicated[device] = True
            else:
                remainders.append((1.0, expert))
        rest = float(demands[expert]) - whole
        if rest > _NEGLIGIBLE:
            remainders.append((rest, expert))
    return remainders


def _place_remainder(plan: _Plan, expert: int, share: float) -> None:
    """Place a share on the first opened device where it fits, else on an empty one, else on the least
    loaded, which may be a host already."""
    hosts, loads = plan.hosted[:, expert], plan.shares.sum(axis=1)
    can_host = plan.has_room & ~hosts if plan.can_add_host(expert) else np.zeros_like(hosts)
    is_opened = can_host & ~plan.is_empty & ~plan.is_dedicated
    fits = is_opened & (loads + share <= 1 + _NEGLIGIBLE)
    for candidates in (fits, can_host & plan.is_empty):
        if candidates.any():
            plan.put(int(np.argmax(candidates)), expert, share)
            return
    plan.put(int(np.argmin(np.where(can_host | hosts, loads, np.inf))), expert, share)


def _place_without_estimate(plan: _Plan, generator: np.random.Generator) -> None:
    """Place experts without host in turn on the devices that are empty now; the rest on random ones."""
    was_empty = plan.is_empty
    for expert in np.flatnonzero(~plan.hosted.any(axis=0)).tolist():
        candidates = was_empty & plan.has_room
        if candidates.any():
            device = int(np.argmin(np.where(candidates, plan.hosted.sum(axis=1), np.inf)))
        else:
            device = int(generator.choice(np.flatnonzero(plan.has_room)))
        plan.put(device, expert, 0.0)
