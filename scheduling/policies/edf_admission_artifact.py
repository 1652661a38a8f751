"""Earliest deadline first with admission control as ElasticFlow's published simulator runs it."""

from __future__ import annotations

from scheduling.core.arrays import Plans
from scheduling.core.problem import Problem
from scheduling.policies.edf_admission import EdfAdmission
from scheduling.policies.exact_completions import wake_at_exact_completion


class EdfAdmissionArtifact(EdfAdmission):
    """The artifact's scale-out limit, plans without pauses, and no newcomer as long as anybody is late.

    Source: the simulator behind figure 9 of the paper. Jobs scale out to their largest measured GPU count even where that is
    slower. Pauses are charged when they happen but stand in no plan, so an admitted job can end late; while one does,
    every newcomer is refused.
    """

    name = "edf_admission_artifact"
    any_measured_size = True
    plans_with_pauses = False
    late_jobs_refuse_all = True

    def _wake(self, problem: Problem, plans: Plans) -> float:
        return min(super()._wake(problem, plans), wake_at_exact_completion(problem, plans))
