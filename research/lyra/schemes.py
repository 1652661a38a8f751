"""The schemes of Table 3.5 by name, and their clusters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from research.lyra.specs import LyraSpec, Size
from scheduling.core.lyra.reclaiming.methods import ReclaimMethod
from simulation.workloads.scenarios import Scenario

FULL = Size(443, 520, "lyra")
CALIBRATED = Size(55, 65, "lyra_scaled")
SCALED = Size(55, 65, "lyra_scaled:mean_interarrival_seconds=147")
"""1.4 times the profile's own rate, at which the baseline waits as published: at that rate an eighth of the
cluster fits nearly all jobs under every other scheme, so that the schemes cannot be ordered."""
SEEDS = (0, 1, 2)


@dataclass(frozen=True, slots=True)
class Scheme:
    """One row: its label and its settings."""

    name: str
    #: The row's label in the table.
    label: str
    #: Name of the policy.
    policy: str
    scenario: Scenario = Scenario.BASIC
    #: Whether servers are lent to training.
    loaning: bool = False
    #: Whether jobs are elastic.
    scaling: bool = False
    reclaim: ReclaimMethod = ReclaimMethod.LYRA

    def spec(self, size: Size, seed: int = 0) -> LyraSpec:
        """Return its run on clusters of a size."""
        return LyraSpec(
            self.policy, size, seed, self.scenario, loaning=self.loaning, scaling=self.scaling,
            reclaim=self.reclaim
        )  # fmt: skip


BASELINE = Scheme("baseline", "Baseline (first come, strictly)", "fifo")
SCHEMES: dict[str, Scheme] = {
    scheme.name: scheme
    for scheme in (
        Scheme("basic", "Lyra, Basic", "lyra", loaning=True, scaling=True),
        Scheme("advanced", "Lyra, Advanced", "lyra", Scenario.ADVANCED, loaning=True, scaling=True),
        Scheme(
            "heterogeneous", "Lyra, Heterogeneous", "lyra", Scenario.HETEROGENEOUS, loaning=True, scaling=True
        ),
        Scheme("ideal", "Lyra, Ideal", "lyra", Scenario.IDEAL, loaning=True, scaling=True),
        Scheme("opportunistic", "Opportunistic", "opportunistic", loaning=True, reclaim=ReclaimMethod.RANDOM),
        Scheme("loaning_random", "Loaning, Random", "lyra", loaning=True, reclaim=ReclaimMethod.RANDOM),
        Scheme("loaning_scf", "Loaning, SCF", "lyra", loaning=True, reclaim=ReclaimMethod.SCF),
        Scheme("loaning", "Loaning, Lyra", "lyra", loaning=True),
        Scheme("gandiva", "Scaling, Gandiva", "lyra_gandiva", scaling=True),
        Scheme("afs", "Scaling, AFS", "afs", scaling=True),
        Scheme("scaling", "Scaling, Lyra", "lyra", scaling=True),
        Scheme("tuned", "Scaling, Lyra with tuned jobs", "lyra_tuned", scaling=True),
        Scheme("sjf", "Shortest first alone", "sjf"),
        Scheme("backfill", "First come, with backfilling", "fifo_backfill"),
        Scheme(
            "improved", "Loaning, reclaims improved", "lyra", loaning=True, reclaim=ReclaimMethod.IMPROVED
        ),
    )
}

POLLUX = Scheme("pollux", "Scaling, Pollux", "lyra_pollux", scaling=True)
"""Separate: its genetic search is too slow for whole traces and clusters."""


def size_of(full: bool) -> Size:
    """Return the published clusters, or an eighth of them."""
    return FULL if full else SCALED


def banded_size(full: bool) -> Size:
    """Return the size with which the baseline waits about as published, so that bands apply."""
    return FULL if full else CALIBRATED


def specs_of(names: Sequence[str], full: bool, size: Size | None = None) -> list[LyraSpec]:
    """Return the runs of the baseline and of some schemes, three seeds."""
    size = size or size_of(full)
    chosen = [BASELINE, *(SCHEMES[name] for name in names)]
    return [scheme.spec(size, seed) for scheme in chosen for seed in SEEDS]


def baseline_of(spec: LyraSpec) -> LyraSpec:
    """Return the baseline on the same jobs."""
    return replace(
        spec, policy=BASELINE.policy, scenario=Scenario.BASIC, loaning=False, scaling=False,
        reclaim=ReclaimMethod.LYRA,
        rules=(), two_phase=(), lending=(), expansion=3, slot_seconds=30.0,
    )  # fmt: skip
