"""Tiresias, two-dimensional least attained service: jobs that have used little GPU time go first.

Gu et al., "Tiresias: A GPU Cluster Manager for Distributed Deep Learning" (NSDI 2019), section 3.2
(discretized 2D-LAS), with the limits of the simulator that ElasticFlow compares with.
"""

from __future__ import annotations

from math import ceil, inf

import numpy as np

from scheduling.core.problem.answer import Answer
from scheduling.core.problem.problem import Problem
from scheduling.core.question.arrays import TIME_TOLERANCE
from scheduling.core.question.snapshot import FloatArray, IntArray
from scheduling.policies.dispatching import answer_with_sizes, requested_sizes, take_all
from scheduling.policies.without_promises import WithoutPromises, contest
from simulation.baselines.against_elasticflow.size_kernels import fitting_in_order

QUEUE_LIMITS_GPU_SECONDS = (3250.0, 7200.0)
"""Attained GPU time at which a job leaves the first and the second of three queues, for good."""

QUEUE, PLACE = 0, 1


class Tiresias(WithoutPromises):
    """Three queues by attained GPU time; within a queue, running jobs come before waiting ones, then by
    start.

    A job gets the GPU count its user requested or none; a job that does not fit is skipped. Jobs can be
    preempted and are never promoted. GPU time counts all seconds in which GPUs are held, pauses included (the
    simulator omits them).
    """

    name = "tiresias"
    any_measured_size = True
    memory_columns = ("queue", "place")

    def reallocate(self, problem: Problem) -> Answer:
        """Go through the queues in order; each job that fits runs."""
        verdicts = take_all(problem)
        field = contest(problem)
        sizes = requested_sizes(problem)
        memory = _requeued(problem)
        order = field.rows[np.lexsort((memory[field.rows, PLACE], memory[field.rows, QUEUE]))]
        wanted = field.kept
        fitting_in_order(order, sizes, field.gpus, wanted)
        _running_first(memory, order, wanted)
        return answer_with_sizes(
            problem, verdicts, wanted, job_memory=memory,
            next_wake_at=_next_demotion(problem, wanted, memory),
        )  # fmt: skip


def seconds_until_demotion(attained_gpu_seconds: float, gpus: int) -> float:
    """Whole seconds for which a job can go on running on ``gpus`` GPUs in its present queue.

    Infinity in the last queue.
    """
    for limit in QUEUE_LIMITS_GPU_SECONDS:
        if attained_gpu_seconds < limit:
            return float(ceil((limit - attained_gpu_seconds) / gpus - TIME_TOLERANCE))
    return inf


def _queue_of(attained_gpu_seconds: FloatArray) -> FloatArray:
    return np.searchsorted(QUEUE_LIMITS_GPU_SECONDS, attained_gpu_seconds, side="right").astype(np.float64)


def _requeued(problem: Problem) -> FloatArray:
    """Queue and place of every job; newcomers and demoted jobs go to the end of their queue."""
    columns = problem.columns
    memory = columns.memory.copy()
    queue = _queue_of(columns.attained_gpu_seconds)
    new = (memory[:, PLACE] == 0) | (queue > memory[:, QUEUE])
    last = memory[:, PLACE].max(initial=0.0)
    memory[new, PLACE] = last + 1.0 + np.arange(int(new.sum()))
    memory[:, QUEUE] = queue
    return memory


def _running_first(memory: FloatArray, order: IntArray, wanted: IntArray) -> None:
    """Renumber the places: running jobs before waiting ones, otherwise in the same order."""
    ranked = order[np.argsort(wanted[order] == 0, kind="stable")]
    memory[ranked, PLACE] = 1.0 + np.arange(ranked.size)


def _next_demotion(problem: Problem, wanted: IntArray, memory: FloatArray) -> float:
    """When a running job next changes queue, but at least a slot after the next slot begins."""
    running = np.flatnonzero((wanted > 0) & (memory[:, QUEUE] < len(QUEUE_LIMITS_GPU_SECONDS)))
    attained = problem.columns.attained_gpu_seconds + problem.columns.gpus * problem.origin
    seconds = [seconds_until_demotion(attained[row], wanted[row]) for row in running.tolist()]
    return problem.next_slot_at + max(problem.slot, min(seconds, default=inf))
