"""Earliest deadline first as ElasticFlow's published simulator runs it."""

from __future__ import annotations

from dataclasses import replace

from scheduling.core.problem.answer import Answer
from scheduling.core.problem.problem import Problem
from simulation.baselines.against_elasticflow.edf import Edf
from simulation.baselines.against_elasticflow.exact_completions import wake_at_exact_completion


class EdfArtifact(Edf):
    """EDF that scales a job out to its largest measured GPU count, even where that makes it slower.

    Source: the simulator behind figures 8 to 11 of the paper. It differs from the text in
    three ways. The scale-out limit is the largest count in the tables, which end at 64 GPUs and at the batch
    size. No pause is charged. The GPUs of a job that ends are divided again at once instead of at the end of
    its slot, if the last planning instant is at least a slot ago.
    """

    name = "edf_artifact"
    any_measured_size = True

    def reallocate(self, problem: Problem) -> Answer:
        """The largest measured count that is left, in deadline order."""
        answer = super().reallocate(problem)
        return replace(answer, next_wake_at=wake_at_exact_completion(answer))
