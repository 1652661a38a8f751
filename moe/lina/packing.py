"""Expert packing: which device hosts which experts, and when to host more on each (Lina 4.4; step T4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean

#: The step after which packing is first considered, and the steps between two considerations.
FIRST_STEP, PERIOD_STEPS = 10, 4
#: A packing is reverted if it makes steps longer by more than this factor.
WORSE_FACTOR = 1.02


@dataclass(frozen=True)
class ExpertPacking:
    """Which device hosts which experts of a layer.

    Devices form expert-parallel groups of consecutive ranks. Each group hosts all experts, and tokens stay in
    their group. Every expert has one replica per group; replicas all-reduce their gradients. A device hosts a
    run of experts. Run lengths differ by at most one; with fewer experts than devices, some are empty.

    Attributes:
        experts: experts of the layer.
        devices: devices of the job.
        factor: packing factor m: the number of groups. With as many experts as devices, each device hosts m
            experts.
    """

    experts: int
    devices: int
    factor: int = 1

    def __post_init__(self) -> None:
        for name in ("experts", "devices", "factor"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.devices % self.factor:
            raise ValueError(f"factor is {self.factor}; it must divide the {self.devices} devices")

    @property
    def group_size(self) -> int:
        """Devices of an expert-parallel group."""
        return self.devices // self.factor

    def experts_of(self, device: int) -> range:
        """Return the experts that a device hosts."""
        slot = device % self.group_size
        return range(self._first_of(slot), self._first_of(slot + 1))

    def _first_of(self, slot: int) -> int:
        """Return the first expert of a place in the groups, rounded up."""
        return -(-slot * self.experts // self.group_size)

    def hosts(self, expert: int) -> range:
        """Return the devices that host an expert: one in each group."""
        return range(expert * self.group_size // self.experts, self.devices, self.group_size)

    def groups(self) -> tuple[range, ...]:
        """Return the devices of each expert-parallel group."""
        return tuple(
            range(first, first + self.group_size) for first in range(0, self.devices, self.group_size)
        )

    def can_pack_more(self) -> bool:
        """Whether the groups can be halved once more."""
        return self.group_size % 2 == 0

    def with_factor(self, factor: int) -> ExpertPacking:
        """Return the same experts on the same devices, packed by another factor."""
        return ExpertPacking(self.experts, self.devices, factor)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Mean times of one training step, in seconds.

    Attributes:
        expert: expert computation of a micro-operation.
        all_to_all: all-to-all of a micro-operation.
        step: the whole step.
    """

    expert: float
    all_to_all: float
    step: float


class Reason(StrEnum):
    """Why a packing changes, or may not change."""

    EXPERTS_SHORTER = "expert computation is shorter than the all-to-all"
    EXPERTS_LONGER = "expert computation became longer than the all-to-all"
    STEP_LONGER = "the step became longer"
    NO_MEMORY = "more experts do not fit into the memory of a worker"


@dataclass(frozen=True, slots=True)
class PackingDecision:
    """A change of the packing factor, or the refusal of one.

    Attributes:
        iteration: the first iteration under this decision.
        from_factor: packing factor until then.
        to_factor: packing factor from then on.
        ffn_seconds: mean expert computation of a micro-operation that led to it.
        all_to_all_seconds: mean all-to-all of a micro-operation that led to it.
    """

    iteration: int
    from_factor: int
    to_factor: int
    ffn_seconds: float
    all_to_all_seconds: float
    reason: Reason


class PackingController:
    """Finds the largest packing factor at which experts compute no longer than the all-to-all takes.

    It doubles the factor while the experts are shorter. It reverts a factor that makes them longer than the
    all-to-all, or makes the step longer, and then stops for good. Groups of one device have no all-to-all, so
    only the step decides for them. All ranks must report equal times, such as the means over ranks.

    Attributes:
        packing: the packing in force.
        is_frozen: whether it no longer changes.
    """

    def __init__(
        self, packing: ExpertPacking, fits: Callable[[ExpertPacking], bool] = lambda _packing: True
    ) -> None:
        """Begin with a packing.

        Args:
            fits: whether all devices have memory for a packing; asked before one is chosen.
        """
        self.packing = packing
        self.is_frozen = False
        self._fits = fits
        self._step = 0
        self._times: list[StepTimes] = []
        self._step_seconds_before: float | None = None

    @property
    def may_change(self) -> bool:
        """Whether any later step can change the packing."""
        return not self.is_frozen and (self.packing.can_pack_more() or self._step_seconds_before is not None)

    def after_step(self, iteration: int, times: StepTimes) -> PackingDecision | None:
        """Record the step of an iteration; return a decision if there is one."""
        if self.is_frozen:
            return None
        self._step += 1
        self._times.append(times)
        if self._step < FIRST_STEP or (self._step - FIRST_STEP) % PERIOD_STEPS:
            return None
        # The first step after a change pays for new groups and cold memory.
        counted, self._times = self._times[1:], []
        mean = StepTimes(
            expert=fmean(step.expert for step in counted),
            all_to_all=fmean(step.all_to_all for step in counted),
            step=fmean(step.step for step in counted),
        )
        before = self.packing.factor
        reason = self._consider(mean)
        if reason is None:
            return None
        after = self.packing.factor
        return PackingDecision(iteration + 1, before, after, mean.expert, mean.all_to_all, reason)

    def _consider(self, mean: StepTimes) -> Reason | None:
        """Change the packing if the times call for it; return why."""
        before, self._step_seconds_before = self._step_seconds_before, None
        if before is not None:
            if mean.expert > mean.all_to_all and self.packing.group_size > 1:
                return self._revert(Reason.EXPERTS_LONGER)
            if mean.step > WORSE_FACTOR * before:
                return self._revert(Reason.STEP_LONGER)
        if mean.expert >= mean.all_to_all or not self.packing.can_pack_more():
            return None
        packed = self.packing.with_factor(2 * self.packing.factor)
        if not self._fits(packed):
            self.is_frozen = True
            return Reason.NO_MEMORY
        self._step_seconds_before = mean.step
        self.packing = packed
        return Reason.EXPERTS_SHORTER

    def _revert(self, reason: Reason) -> Reason:
        self.is_frozen = True
        self.packing = self.packing.with_factor(self.packing.factor // 2)
        return reason
