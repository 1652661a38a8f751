"""Measures a function's scaling curve: iterations per second of the global batch at 1, 2, 4, … GPUs.

One start serves all levels. The generation spans the whole block; at level n the first n ranks train in a
group of their own while the others wait in a collective. The trained state is discarded.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import torch
import torch.distributed as dist

from communication.hooks.device_time import courses_of
from workers.runtime import host_memory
from workers.runtime.data.data_comparison import compare_workers, fetch_first_samples
from workers.runtime.emulation.emulated_time import Overrun
from workers.runtime.failures import WorkerFailureError
from workers.runtime.function.function_loading import overrides
from workers.runtime.function.parts import (
    TrainingParts,
    build_dataset,
    build_loader,
    build_parts,
    select_device,
)
from workers.runtime.iterating.evaluation import evaluate
from workers.runtime.iterating.iteration import Control, IterationRunner
from workers.runtime.iterating.lives import Lives, copies_of
from workers.runtime.iterating.training_state import (
    Progress,
    ShardCapture,
    check_portable,
    homes_of,
    restore,
    state_bytes,
)
from workers.runtime.measuring.codec_times import codec_fields
from workers.runtime.measuring.gradient_densities import GradientDensities, sparse_fields
from workers.runtime.measuring.gradient_times import GradientTimes
from workers.runtime.measuring.link_times import link_fields
from workers.runtime.measuring.mixture_sizes import mixture_fields
from workers.runtime.measuring.records import profile_fields
from workers.runtime.measuring.row_times import traffic_fields
from workers.runtime.process_group import build_emulation, open_process_group, subgroup
from workers.runtime.state.layout import OwnState
from workers.runtime.state.loading import ShardInMemory, load_state
from workers.runtime.state.moves import StateMoves
from workers.runtime.state.shards import Shard, describe_as_bytes
from workers.runtime.synchronisation.together import Synchronisation
from workers.runtime.topology import Topology
from workers.runtime.training import WorkerContext, build_pace

_log = logging.getLogger(__name__)

WARM_UP_ITERATIONS = 2
LEAST_ITERATIONS = 5
#: Share of `max_seconds` after which no level is started or continued; at the end the agent kills the worker.
WORKING_SHARE = 0.75
#: Overrun above which a measurement on an emulated device is void. It is repeated at most REPETITIONS times;
#: if it is still void, it is reported with its overrun.
VOID_OVERRUN = 0.05
REPETITIONS = 2
#: Iterations in which the rows that gradients touch are recorded.
DENSITY_ITERATIONS = 4


@dataclass(frozen=True)
class LevelMeasurement:
    """The measurement of one level of the curve.

    Attributes:
        iterations_per_second: of the global batch, the cost of evaluations and checkpoints included.
        train_seconds: forward and backward pass alone, mean.
        pause_seconds: time to take the training over at this level: state to bytes, to all ranks, into the
            model, and the first iteration.
        memory_bytes: largest peak of a rank's accelerator memory; where tensors lie in host memory, by how
            much that grew since the worker's start, since the libraries take none of a device's.
        host_memory_bytes: largest peak of a rank's host memory.
        state_bytes: all shards together, with their descriptions.
        overrun: on an emulated device, the share by which iterations took longer than emulated because this
            machine was too slow; else None.
    """

    gpus: int
    iterations_per_second: float
    train_seconds: float
    pause_seconds: float
    memory_bytes: int
    host_memory_bytes: int
    state_bytes: int
    overrun: float | None


@dataclass(frozen=True)
class Measurement:
    """Some iterations at one level."""

    iteration_seconds: float
    train_seconds: float
    elapsed_seconds: float
    overrun: float | None


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
        self._codec_times: list[dict[str, object]] | None = None
        self._ends_at = time.monotonic() + WORKING_SHARE * self.plan.max_seconds

    def run(self) -> int:
        """Measure the levels and report them; return the worker's exit code.

        Raises:
            WorkerFailureError: the function or the start failed.
        """
        assignment = self.assignment
        host_memory.forget_peak()
        self._bytes_at_start = host_memory.own_peak_bytes()
        self.connection.phase("preparing")
        self.device = select_device(assignment.device)
        self.dataset = build_dataset(self.context.function, assignment.seed)
        first_samples = fetch_first_samples(self.dataset, assignment.seed)
        function, _ = copies_of(self.context.function, self.dataset)
        self._check_and_tell(build_parts(function, self.device, assignment.seed))
        self.emulation = build_emulation(assignment, self.context.box)
        self.moves = StateMoves(self.emulation, assignment.device.place)
        open_process_group(assignment, self.emulation)
        compare_workers(first_samples, rank=assignment.rank, world_size=assignment.world_size)
        # Form the groups of all levels now, as all ranks have to take part.
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

    def _check_and_tell(self, parts: TrainingParts) -> None:
        """Check the model and report the sizes of one with experts: they limit its numbers of workers."""
        check_portable(parts)
        sizes = mixture_fields(parts) if self.leads else None
        if sizes is not None:
            self.connection.event("mixture", **sizes)

    def _measurable(self, level: int) -> bool:
        """Return whether a level fits the block and divides the global batch: others are never planned."""
        return level <= self.assignment.world_size and self.assignment.global_batch_size % level == 0

    def _measure_levels(self, levels: list[int], groups: dict[int, dist.ProcessGroup | None]) -> str:
        best = self.plan.known
        for level in levels:
            # Measure at least one level, however late it begins.
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
                    host_memory_bytes=measured.host_memory_bytes,
                    state_bytes=measured.state_bytes,
                    **({} if measured.overrun is None else {"overrun": measured.overrun}),
                )
            rate = measured.iterations_per_second if measured is not None else None
            if self._decide(best is not None and rate is not None and rate <= best):
                return "no_gain"
            best = rate if rate is not None else best
        return "all_levels" if not self._decide(best is None) else "out_of_memory"

    def _decide(self, answer: bool) -> bool:
        """Return rank 0's answer on all ranks; ranks outside a level wait here."""
        choice = torch.tensor([int(answer)])
        dist.broadcast(choice, src=0)
        return bool(int(choice))

    def _measure(
        self, level: int, group: dist.ProcessGroup | None, seconds: float
    ) -> LevelMeasurement | None:
        """Measure one level; return None if it does not fit into the accelerator's memory."""
        host_memory.forget_peak()
        lives = Lives(partial(self._begin, level, group), self.assignment.max_iterations)
        found = self._measure_lives(lives, level, group, seconds)
        # The next level has its own groups and hooks.
        lives.close()
        return found

    def _begin(self, level: int, group: dist.ProcessGroup | None) -> IterationRunner:
        """Build a runner as at the job's start."""
        function, dataset = copies_of(self.context.function, self.dataset)
        parts = build_parts(function, self.device, self.assignment.seed)
        parts.disk = self.assignment.disk_share
        parts.topology = Topology.of(self.assignment)
        synchronisation = Synchronisation(self.assignment.runtime_plan.at(level), parts, group)
        synchronisation.begin_alike()
        runner = IterationRunner(
            parts,
            synchronisation,
            build_loader(self.assignment, parts, dataset, level),
            group=group,
            world_size=level,
            rank=self.assignment.rank,
            seed=self.assignment.seed,
            clip_norm=self.assignment.settings.gradient_clip_norm,
            pace=build_pace(self.assignment, self.emulation, parts, level),
        )
        runner.times = GradientTimes(parts.module, self.device, runner.pace)
        return runner

    def _measure_lives(
        self, lives: Lives, level: int, group: dist.ProcessGroup | None, seconds: float
    ) -> LevelMeasurement | None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        if not self._fits(lives, group):
            _log.info("level %d does not fit into memory", level)
            return None
        pause = self._measure_pause(lives, group)
        measured = self._measure_validly(lives, group, seconds)
        if _first_says(not self._snapshot_seconds, group):
            with lives.runner.synchronisation.whole():
                if self.leads:
                    self._measure_side_work(lives.runner.parts, level)
        found = LevelMeasurement(
            gpus=level,
            iterations_per_second=self._charged_rate(measured.iteration_seconds),
            train_seconds=measured.train_seconds,
            pause_seconds=pause,
            memory_bytes=self._peak_memory(group),
            host_memory_bytes=_most_bytes(host_memory.peak_bytes(), group),
            state_bytes=_sum_of_bytes(self._shard_bytes(lives.runner, level), group),
            overrun=measured.overrun,
        )
        # After the memory peaks are read, as it takes memory itself.
        self._tell_gradients(lives, group, level, measured.iteration_seconds)
        return found

    def _fits(self, lives: Lives, group: dist.ProcessGroup | None) -> bool:
        """Return whether all ranks have the memory for an iteration.

        The trial runs without synchronisation, so that a rank out of memory does not block the others.
        """
        fits = True
        try:
            lives.rehearse()
            if dist.get_world_size(group) == 1 and self._may_be_divided():
                # Errors that only a divided batch shows are found now, not when the job is rescaled.
                lives.rehearse(workers=2)
        except WorkerFailureError as failure:
            if not failure.out_of_memory:
                raise
            fits = False
        except torch.OutOfMemoryError:
            fits = False
        if not fits:
            lives.runner.parts.optimizer.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
        votes = torch.tensor([int(fits)])
        dist.all_reduce(votes, op=dist.ReduceOp.MIN, group=group)
        return bool(int(votes))

    def _may_be_divided(self) -> bool:
        """Return whether two workers may share the batch, with more than one sample each."""
        counts, batch = self.context.function.worker_counts, self.assignment.global_batch_size
        return batch % 2 == 0 and batch >= 4 and (not counts or max(counts) > 1)

    def _measure_pause(self, lives: Lives, group: dist.ProcessGroup | None) -> float:
        """Take the state over as a new generation would, run the first iteration, return the seconds."""
        lives.go_on_for(1)
        runner = lives.runner
        started = time.perf_counter()
        rank, level = self.assignment.rank, dist.get_world_size(group)
        shard = self._own_shard(runner.parts, level, copy=False)
        self.moves.copied(shard.bytes, time.monotonic())
        take_over(runner, shard, group, rank, level, self.assignment.global_batch_size)
        self.moves.copied(state_bytes(runner.parts), time.monotonic())
        lives.iterate()
        return time.perf_counter() - started

    def _shard_bytes(self, runner: IterationRunner, level: int) -> int:
        """Return the size of this rank's shard in a store, description included, without copying it."""
        shard = self._own_shard(runner.parts, level, copy=False, own=runner.synchronisation.state())
        return shard.bytes + len(describe_as_bytes(shard))

    def _own_shard(
        self, parts: TrainingParts, level: int, *, copy: bool, own: OwnState = MappingProxyType({})
    ) -> Shard:
        capture = ShardCapture(
            parts,
            generation=0,
            global_batch_size=self.assignment.global_batch_size,
            rank=self.assignment.rank,
            world_size=level,
        )
        return capture.shard(Progress(), copy=copy, own=own)

    def _measure_validly(self, lives: Lives, group: dist.ProcessGroup | None, seconds: float) -> Measurement:
        """Measure iterations; repeat while the measurement is void and time is left. Return the measurement
        with the least overrun."""
        self._warm_up(lives)
        assert lives.runner.times is not None
        lives.runner.times.watching = lives.runner.rows.watching = True
        best = self._measure_iterations(lives, group, seconds)
        for _ in range(REPETITIONS):
            late = time.monotonic() + best.elapsed_seconds >= self._ends_at
            # The first rank decides, as clocks differ.
            if best.overrun is None or best.overrun <= VOID_OVERRUN or _first_says(late, group):
                break
            measured = self._measure_iterations(lives, group, seconds)
            assert measured.overrun is not None
            best = measured if measured.overrun < best.overrun else best
        return best

    def _warm_up(self, lives: Lives) -> None:
        for _ in range(WARM_UP_ITERATIONS):
            out_of_time = time.monotonic() >= self._ends_at
            control = lives.iterate(Control.LEVEL_DONE if out_of_time else Control.GO_ON).control
            if control is Control.LEVEL_DONE:
                break

    def _measure_iterations(
        self, lives: Lives, group: dist.ProcessGroup | None, seconds: float
    ) -> Measurement:
        """Measure for `seconds` and at least LEAST_ITERATIONS; a slow function, for as many iterations as fit
        until the end of the time, at least one."""
        pace = lives.runner.pace
        overrun = None if pace is None else Overrun(pace.clock)
        started, between = time.perf_counter(), lives.between_seconds
        count, train_seconds = 0, 0.0
        control = Control.GO_ON
        while control is not Control.LEVEL_DONE:
            last = count + 1 >= LEAST_ITERATIONS and time.perf_counter() - started >= seconds
            last = last or time.monotonic() >= self._ends_at
            result = lives.iterate(Control.LEVEL_DONE if last else Control.GO_ON)
            control = result.control
            train_seconds += result.train_seconds
            count += 1
        between = lives.between_seconds - between
        if overrun is not None:
            overrun.leave_out(between)
        elapsed = time.perf_counter() - started - between if overrun is None else overrun.elapsed_seconds()
        return Measurement(
            elapsed / count,
            train_seconds / count,
            elapsed,
            None if overrun is None else _most(overrun.share(), group),
        )

    def _tell_gradients(
        self, lives: Lives, group: dist.ProcessGroup | None, level: int, iteration_seconds: float
    ) -> None:
        """Report the measurements from which gradient plans are computed. Densities take a few more
        iterations, if time is left."""
        iterations = lives.go_on_for(DENSITY_ITERATIONS)
        runner = lives.runner
        assert runner.times is not None
        runner.times.watching = runner.rows.watching = False
        if runner.synchronisation.of_kind("lina") is not None:
            # Lina's backward pass waits for pieces of rows, so its gradient times are unusable for plans.
            runner.times.close()
            return
        densities = GradientDensities(runner.parts.module, runner.parts.experts.hosts)
        densities.watching = True
        for _ in range(iterations):
            if _first_says(time.monotonic() + iteration_seconds >= self._ends_at, group):
                break
            lives.iterate()
            densities.iteration_done()
        densities.close()
        profiles = densities.profiles(group)
        links = link_fields(self.assignment.places.servers[:level], group, self.device)
        if self.leads and profiles is not None:
            if self._codec_times is None:
                self._codec_times = codec_fields(self.device, courses_of(group))
            fields = profile_fields(
                runner.parts.module,
                runner.times.iterations,
                gpus=level,
                sparse=sparse_fields(profiles),
                codecs=self._codec_times,
                links=links,
                without=runner.parts.experts.hosts,
                experts=traffic_fields(runner.rows.take()),
            )
            if fields is not None:
                self.connection.event("communication_profile", **fields)
        runner.times.close()

    def _measure_side_work(self, parts: TrainingParts, level: int) -> None:
        """Time an evaluation and a checkpoint's copy, which interrupt iterations."""
        if overrides(self.context.function, "evaluate"):
            started = time.perf_counter()
            evaluate(parts.function, parts.module, self.assignment.seed)
            self._evaluate_seconds = time.perf_counter() - started
        started = time.perf_counter()
        shard = self._own_shard(parts, level, copy=True)
        self.moves.copied(shard.bytes, time.monotonic())
        self._snapshot_seconds = time.perf_counter() - started

    def _charged_rate(self, iteration_seconds: float) -> float:
        """Return iterations per second, with evaluations and checkpoints as often as in this job."""
        every = self.assignment.settings.evaluate_every
        if every:
            iteration_seconds += self._evaluate_seconds / every
        training_share = 1 - min(0.5, self._snapshot_seconds / self.assignment.checkpoint_seconds)
        return training_share / iteration_seconds

    def _peak_memory(self, group: dist.ProcessGroup | None) -> int:
        if self.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self.device)
        else:
            peak = max(0, host_memory.own_peak_bytes() - self._bytes_at_start)
        return _most_bytes(peak, group)


def take_over(
    runner: IterationRunner,
    shard: Shard,
    group: dist.ProcessGroup | None,
    rank: int,
    level: int,
    global_batch_size: int,
) -> None:
    """Load the state of all ranks into the training model, as a new generation does.

    Args:
        shard: this rank's shard.
    """
    parts = runner.parts
    state = load_state(
        {rank: ShardInMemory(shard)}, range(level), group, rank=rank, homes=homes_of(parts),
        experts=parts.expert_states,
    )  # fmt: skip
    assert state is not None  # reading from memory cannot fail
    with runner.synchronisation.restoring():
        restore(parts, state.content, global_batch_size=global_batch_size)


def _most_bytes(value: int, group: dist.ProcessGroup | None) -> int:
    """The largest of the ranks' values."""
    most = torch.tensor([value])
    dist.all_reduce(most, op=dist.ReduceOp.MAX, group=group)
    return int(most)


def _sum_of_bytes(value: int, group: dist.ProcessGroup | None) -> int:
    """Return the sum of the ranks' values."""
    total = torch.tensor([value])
    dist.all_reduce(total, op=dist.ReduceOp.SUM, group=group)
    return int(total)


def _most(value: float, group: dist.ProcessGroup | None) -> float:
    """The largest of the ranks' values."""
    most = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(most, op=dist.ReduceOp.MAX, group=group)
    return float(most)


def _first_says(answer: bool, group: dist.ProcessGroup | None) -> bool:
    """Return the first rank's answer on all ranks of the group."""
    choice = torch.tensor([int(answer)])
    dist.broadcast(choice, src=0, group=group)
    return bool(int(choice))
