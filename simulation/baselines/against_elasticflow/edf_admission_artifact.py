"""Earliest deadline first with admission control as ElasticFlow's published simulator runs it."""

from __future__ import annotations

from dataclasses import replace

from scheduling.core.problem.answer import Answer
from scheduling.core.problem.problem import Problem
from simulation.baselines.against_elasticflow.edf_admission import EdfAdmission
from simulation.baselines.against_elasticflow.exact_completions import wake_at_exact_completion


class EdfAdmissionArtifact(EdfAdmission):
    """The artifact's scale-out limit, plans without pauses, and no admission while any job is late.

    Source: the simulator behind figure 9 of the paper. Jobs scale out to their largest measured GPU count,
    even where that is slower. Every planning instant stops and restarts all running jobs, with a shorter
    pause for jobs that keep their GPUs. Plans include no pauses, so an admitted job can end late; while one
    is late, every newcomer is refused. So the counts are sensitive: a few seconds decide whether a long job
    is late, and with it all newcomers during its run.
    """

    name = "edf_admission_artifact"
    any_measured_size = True
    plans_with_pauses = False
    late_jobs_refuse_all = True

    def reallocate(self, problem: Problem) -> Answer:
        """Give each job the GPUs of its plan in the next slot; decide again when a job ends, not at the end
        of its slot."""
        answer = super().reallocate(problem)
        return replace(answer, next_wake_at=wake_at_exact_completion(answer))
