"""Lyra's settings of a run: which jobs are elastic, whether servers are lent, and how reclaims choose."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

from scheduling.core.question.options import option
from scheduling.core.question.two_phase_options import TwoPhaseOptions
from simulation.engine.asked.lending import Lending
from simulation.workloads.linear import COMPUTING_POWER
from simulation.workloads.scenarios import RULES, ScenarioRules, WorkerRanges


@dataclass(frozen=True, slots=True)
class SharingSettings:
    """With ``rules``, jobs follow Lyra's evaluation: their work is the requested GPUs times their duration
    on them. With neither rules nor ``ranges``, jobs follow their measured curves, as on the live platform.

    ``lending``: None if nothing is lent. ``ranges``: ranges of workers, if known; otherwise ``rules`` assign
    them. ``two_phase``: options of the policy.
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
        """The policy's options: the chosen ones, with the jobs' own mixing efficiency and expansion."""
        asked = self.two_phase
        if self.rules is None:
            return asked
        # Rates on one kind already include what a mixing job loses there; the policy needs the ratio.
        relative = self.rules.mixing_efficiency / self.rules.mixing_efficiency_alone
        return replace(asked, efficiency=relative, expansion=self.expansion)

    def described(self) -> dict[str, str | int | float | bool]:
        """Return the settings as plain values for reports: the scenario, the loans, and every option that
        differs from its default."""
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
    """Return the fields of a dataclass that differ from the defaults and are not None."""
    return {
        each.name: value
        for each in fields(chosen)  # type: ignore[arg-type]
        if (value := getattr(chosen, each.name)) != getattr(usual, each.name) and value is not None
    }
