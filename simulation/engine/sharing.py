"""What a run asks of Lyra's side: which jobs are elastic, whether servers are lent, and by whose choice they go back."""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduling.core.reclaiming import ReclaimMethod
from simulation.inference.usage import UsageSeries
from simulation.workloads.linear import COMPUTING_POWER
from simulation.workloads.scenarios import ScenarioRules, WorkerRanges


@dataclass(frozen=True, slots=True)
class Lending:
    """An inference cluster beside the training cluster, and how its idle servers are lent (spec 2.2 to 2.4).

    ``usage``: share of its GPUs in use over time. ``headroom``: share of its servers that is never lent. ``forecast_margin``:
    share of the cluster added to every forecast. ``gpu_type``: of its servers. ``forecaster``: its name, or "" for none.
    """

    servers: int
    usage: UsageSeries
    reclaim: ReclaimMethod = ReclaimMethod.LYRA
    exact_last_pick: bool = True
    headroom: float = 0.02
    forecast_margin: float = 0.0
    forecaster: str = "persistence"
    period_seconds: float = 300.0
    gpu_type: str = "T4"


@dataclass(frozen=True, slots=True)
class SharingSettings:
    """With ``rules`` jobs are taken as Lyra's evaluation takes them: their work is what was asked for times how long it took on that.
    With neither rules nor ``ranges`` they are what their measured curves say, as on the live platform.

    ``expansion``: inference workers that stand for one training worker. ``scaling``: whether elastic jobs are scaled, or run on what was asked for. ``lending``: None where nothing is lent.
    ``ranges``: of workers, where they are known; otherwise jobs are tagged by ``rules``. ``preemption_seconds``: what being preempted costs beyond lost progress (Lyra section 3.7.2).
    """

    rules: ScenarioRules | None = field(default_factory=ScenarioRules)
    scaling: bool = True
    lending: Lending | None = None
    expansion: int = COMPUTING_POWER
    preemption_seconds: float = 63.0
    ranges: WorkerRanges | None = None

    @property
    def by_curves(self) -> bool:
        """Whether ranges of workers come from measured curves."""
        return self.rules is None and self.ranges is None
