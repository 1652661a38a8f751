"""Measures a function's scaling curve: iterations per second of the global batch at 1, 2, 4, … GPUs.

One start serves all levels. The generation spans the whole block; at level n the first n ranks train in a
group of their own while the others sleep in a collective. Nothing of it is kept.
"""

from __future__ import annotations

import logging
import resource
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

from workers.runtime.failures import WorkerFailureError, blaming_the_function
from workers.runtime.function_loading import overrides
from workers.runtime.iteration import Control, IterationRunner
from workers.runtime.parts import (
    TrainingParts,
    build_dataset,
    build_loader,
    build_parts,
    distribute,
    select_device,
)
from workers.runtime.process_group import open_process_group, subgroup
from workers.runtime.state.loading import ShardInMemory, load_state
from workers.runtime.state.shards import Shard
from workers.runtime.state.training_state import Progress, capture_shard, check_portable, homes_of, restore
from workers.runtime.training import WorkerContext, build_pacer, clip_norm

_log = logging.getLogger(__name__)

WARM_UP_ITERATIONS = 2
LEAST_ITERATIONS = 5
#: Share of the time that a measurement may take after which no level is begun or gone on with: its agent
#: kills it at the end.
WORKING_SHARE = 0.75


@dataclass(frozen=True)
class LevelMeasurement:
    """What a level of the curve is made of.

    Attributes:
        iterations_per_second: of the global batch, evaluation and checkpoints charged as often as they come.
            train_seconds: forward and backward pass alone, mean. pause_seconds: what taking the training over
            at this level costs: state to bytes, to all ranks, into the model, and the first iteration.
        memory_bytes: the most that a rank needed.
    """

    gpus: int
    iterations_per_second: float
    train_seconds: float
    pause_seconds: float
    memory_bytes: int


class ProfilingGeneration:
    """One rank of a profiling generation."""

    def __init__(self, context: WorkerContext) -> None:
        assert context.assignment.profile is not None
        self.context = context
        self.assignment = context.assignment
        self.plan = context.assignment.profile
        self.connection = context.connection
        self.leads = self.assignment.rank == 0
        self._evaluate_seconds = 0.0
        self._snapshot_seconds = 0.0
        self._ends_at = time.monotonic() + WORKING_SHARE * self.plan.max_seconds

    def run(self) -> int:
        """Measure the levels and report them; returns the worker's exit code.

        Raises:
            WorkerFailureError: the function or the start failed.
        """
        assignment = self.assignment
        self.connection.phase("preparing")
        self.device = select_device(assignment)
        self.dataset = build_dataset(self.context.function, assignment.seed)
        check_portable(build_parts(self.context.function, self.device, assignment.seed))
        open_process_group(assignment)
        # Every level forms its group now, as all ranks have to take part in that.
        levels = [n for n in self.plan.levels if self._measurable(n)]
        groups = {level: subgroup(range(level)) for level in levels}
        dist.all_reduce(torch.zeros(1))
        self.connection.phase("profiling")
        reason = self._measure_levels(levels, groups)
        if self.leads:
            extra = {"evaluate_seconds": self._evaluate_seconds} if self._evaluate_seconds else {}
            self.connection.event("profile_done", reason=reason, **extra)
        self.connection.phase("completed")
        return 0

    def _measurable(self, level: int) -> bool:
        """Only levels of this block that divide the global batch are ever planned with."""
        return level <= self.assignment.world_size and self.assignment.global_batch_size % level == 0

    def _measure_levels(self, levels: list[int], groups: dict[int, dist.ProcessGroup | None]) -> str:
        best: float | None = None
        for level in levels:
            # One level is worth more than none, however late it begins.
            if self._decide(level != levels[0] and time.monotonic() >= self._ends_at):
                return "time"
            measured = None
            if self.assignment.rank < level:
                measured = self._measure(level, groups[level], self.plan.seconds_per_level)
            if self.leads and measured is not None:
                self.connection.event(
                    "profile_level",
                    gpus=measured.gpus,
                    iterations_per_second=measured.iterations_per_second,
                    train_seconds=measured.train_seconds,
                    pause_seconds=measured.pause_seconds,
                    memory_bytes=measured.memory_bytes,
                )
            rate = measured.iterations_per_second if measured is not None else None
            if self._decide(best is not None and rate is not None and rate <= best):
                return "no_gain"
            best = rate if rate is not None else best
        return "all_levels" if not self._decide(best is None) else "out_of_memory"

    def _decide(self, answer: bool) -> bool:
        """Rank 0's answer for all ranks; those that have nothing to do at a level sleep here."""
        choice = torch.tensor([int(answer)])
        dist.broadcast(choice, src=0)
        return bool(int(choice))

    def _measure(
        self, level: int, group: dist.ProcessGroup | None, seconds: float
    ) -> LevelMeasurement | None:
        """Measure one level; None when the accelerator's memory does not hold it."""
        parts = build_parts(self.context.function, self.device, self.assignment.seed)
        runner = IterationRunner(
            parts,
            distribute(parts, group),
            build_loader(self.assignment, self.context.function, self.dataset, level, self.device),
            group=group,
            world_size=level,
            rank=self.assignment.rank,
            seed=self.assignment.seed,
            clip_norm=clip_norm(self.assignment),
            pacer=build_pacer(self.assignment, parts, level, range(level)),
        )
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        if not self._fits(runner, group):
            _log.info("level %d does not fit into memory", level)
            return None
        pause = self._measure_pause(runner, group)
        count, elapsed, train_seconds = self._measure_iterations(runner, seconds)
        if self.leads and not self._snapshot_seconds:
            self._measure_side_work(parts, level)
        return LevelMeasurement(
            gpus=level,
            iterations_per_second=self._charged_rate(elapsed / count),
            train_seconds=train_seconds,
            pause_seconds=pause,
            memory_bytes=self._peak_memory(group),
        )

    def _fits(self, runner: IterationRunner, group: dist.ProcessGroup | None) -> bool:
        """Try an iteration without synchronisation: a rank that runs out of memory must not leave others
        waiting."""
        fits = True
        try:
            runner.rehearse(0)
        except WorkerFailureError as failure:
            if not failure.out_of_memory:
                raise
            fits = False
        except torch.OutOfMemoryError:
            fits = False
        if not fits:
            runner.parts.optimizer.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
        votes = torch.tensor([int(fits)])
        dist.all_reduce(votes, op=dist.ReduceOp.MIN, group=group)
        return bool(int(votes))

    def _measure_pause(self, runner: IterationRunner, group: dist.ProcessGroup | None) -> float:
        """Take the state over as a new generation would, then run the first iteration."""
        started = time.perf_counter()
        rank, level = self.assignment.rank, dist.get_world_size(group)
        shard = self._own_shard(runner.parts, level, copy=False)
        homes = homes_of(runner.parts)
        state = load_state({rank: ShardInMemory(shard)}, range(level), group, rank=rank, homes=homes)
        assert state is not None  # memory does not fail
        restore(runner.parts, state, global_batch_size=self.assignment.global_batch_size)
        runner.run(0)
        return time.perf_counter() - started

    def _own_shard(self, parts: TrainingParts, level: int, *, copy: bool) -> Shard:
        return capture_shard(
            parts,
            Progress(),
            generation=0,
            global_batch_size=self.assignment.global_batch_size,
            rank=self.assignment.rank,
            world_size=level,
            copy=copy,
        )

    def _measure_iterations(self, runner: IterationRunner, seconds: float) -> tuple[int, float, float]:
        """Iterations done, seconds they took, and their mean `train_seconds`; the first ones are dropped.

        A function too slow for so many is measured by as many as there is time for, and by one at least.
        """
        iteration = 1
        for _ in range(WARM_UP_ITERATIONS):
            out_of_time = time.monotonic() >= self._ends_at
            control = runner.run(iteration, Control.LEVEL_DONE if out_of_time else Control.GO_ON).control
            iteration += 1
            if control is Control.LEVEL_DONE:
                break
        if runner.pacer is not None:
            # what the host lost while it warmed up is not made up for at the curve's expense
            runner.pacer.restart()
        started = time.perf_counter()
        count, train_seconds = 0, 0.0
        control = Control.GO_ON
        while control is not Control.LEVEL_DONE:
            last = count + 1 >= LEAST_ITERATIONS and time.perf_counter() - started >= seconds
            last = last or time.monotonic() >= self._ends_at
            result = runner.run(iteration, Control.LEVEL_DONE if last else Control.GO_ON)
            control = result.control
            train_seconds += result.train_seconds
            iteration += 1
            count += 1
        return count, time.perf_counter() - started, train_seconds / count

    def _measure_side_work(self, parts: TrainingParts, level: int) -> None:
        """Time what interrupts iterations now and then: an evaluation and a checkpoint's copy."""
        if overrides(self.context.function, "evaluate"):
            started = time.perf_counter()
            parts.module.eval()
            with blaming_the_function("evaluate()"), torch.no_grad():
                self.context.function.evaluate(parts.module)
            self._evaluate_seconds = time.perf_counter() - started
        started = time.perf_counter()
        self._own_shard(parts, level, copy=True)
        self._snapshot_seconds = time.perf_counter() - started

    def _charged_rate(self, iteration_seconds: float) -> float:
        """Iterations per second when evaluations and checkpoints come as often as this job has them."""
        every = int(self.assignment.hyperparameters.get("evaluate_every") or 0)
        if every:
            iteration_seconds += self._evaluate_seconds / every
        training_share = 1 - min(0.5, self._snapshot_seconds / self.assignment.checkpoint_seconds)
        return training_share / iteration_seconds

    def _peak_memory(self, group: dist.ProcessGroup | None) -> int:
        if self.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self.device)
        else:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        most = torch.tensor([peak])
        dist.all_reduce(most, op=dist.ReduceOp.MAX, group=group)
        return int(most)
