"""What a run asks of Lyra's side: which jobs are elastic, whether servers are lent, and by whose choice they
go back."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

from scheduling.core.question.options import option
from scheduling.core.question.two_phase_options import TwoPhaseOptions
from simulation.engine.asked.lending import Lending
from simulation.workloads.linear import COMPUTING_POWER
from simulation.workloads.scenarios import RULES, ScenarioRules, WorkerRanges


@dataclass(frozen=True, slots=True)
class SharingSettings:
    """With ``rules`` jobs are taken as Lyra's evaluation takes them: their work is what was asked for times
    how long it took on that. With neither rules nor ``ranges`` they are what their measured curves say, as on
    the live platform.

    ``lending``: None where nothing is lent. ``ranges``: of workers, where they are known; otherwise jobs are
    tagged by ``rules``. ``two_phase``: choices for the policy.
    """

    rules: ScenarioRules | None = field(default_factory=ScenarioRules)
    scaling: bool = option(True, "whether elastic jobs are scaled, or run on what was asked for")
    lending: Lending | None = None
    expansion: int = option(COMPUTING_POWER, "inference workers for one training worker", least=1)
    #: Lyra section 3.7.2.
    preemption_seconds: float = option(63.0, "what being preempted costs beyond lost progress")
    ranges: WorkerRanges | None = None
    two_phase: TwoPhaseOptions = field(default_factory=TwoPhaseOptions)

    @property
    def by_curves(self) -> bool:
        """Whether ranges of workers come from measured curves."""
        return self.rules is None and self.ranges is None

    @property
    def choices(self) -> TwoPhaseOptions:
        """What the policy is told: the choices made, and what the jobs themselves say about mixing and
        expansion."""
        asked = self.two_phase
        if self.rules is None:
            return asked
        # Rates on one kind hold what a mixing job loses there already, so the policy is told what mixing
        # changes.
        relative = self.rules.mixing_efficiency / self.rules.mixing_efficiency_alone
        return replace(asked, efficiency=relative, expansion=self.expansion)

    def described(self) -> dict[str, str | int | float | bool]:
        """What was asked, in plain values, for reports: only what is not as usual, beside the scenario and
        the loans."""
        facts: dict[str, str | int | float | bool] = {
            "scaling": self.scaling,
            "loaning": self.lending is not None,
        }
        if self.rules is not None:
            usual = RULES[self.rules.scenario]
            facts["scenario"] = str(self.rules.scenario)
            facts["expansion"] = self.expansion
            facts |= _unusual(self.rules, usual)
        if self.lending is not None:
            lent = self.lending
            facts |= {
                "inference_servers": lent.servers,
                "inference_usage": lent.usage.name,
                "reclaim": str(lent.reclaim),
                "forecaster": lent.forecaster,
            }
            facts |= _unusual(
                lent, Lending(lent.servers, lent.usage, lent.reclaim, forecaster=lent.forecaster)
            )
        return facts | _unusual(self.two_phase, TwoPhaseOptions())


def _unusual(chosen: object, usual: object) -> dict[str, str | int | float | bool]:
    """Fields of a dataclass that differ from the usual ones."""
    return {
        each.name: value
        for each in fields(chosen)  # type: ignore[arg-type]
        if (value := getattr(chosen, each.name)) != getattr(usual, each.name) and value is not None
    }
