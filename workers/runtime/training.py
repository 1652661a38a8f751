"""One rank of a training generation, from `prepare` to its end."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from punctual.function import TrainingFunction
from recovery.store.allowances import LONGEST_COPY_SECONDS
from recovery.store.client import StoreClient
from recovery.traffic.modes import TrafficMode
from workers.runtime.assignment import Assignment
from workers.runtime.checkpoints import CheckpointWriter, write_final
from workers.runtime.connection import AgentConnection
from workers.runtime.data.data_comparison import compare_generations, compare_workers, fetch_first_samples
from workers.runtime.data.sample_order import chain_digest
from workers.runtime.emulation.emulated_network import Emulation
from workers.runtime.emulation.pace import Pace
from workers.runtime.experts.path_recorder import PathRecorder
from workers.runtime.failures import start_failed
from workers.runtime.function.function_loading import overrides
from workers.runtime.function.parts import (
    TrainingParts,
    build_dataset,
    build_loader,
    build_parts,
    select_device,
)
from workers.runtime.goals import Goals
from workers.runtime.iterating.evaluation import evaluate
from workers.runtime.iterating.iteration import Control, IterationResult, IterationRunner, finite
from workers.runtime.iterating.routing import routing_reports
from workers.runtime.iterating.stopping import function_stops
from workers.runtime.iterating.training_state import (
    Progress,
    ShardCapture,
    check_portable,
    final_weights,
    homes_of,
    restore,
    state_bytes,
)
from workers.runtime.measuring.gradient_times import GradientTimes
from workers.runtime.measuring.windows import CommunicationWindows
from workers.runtime.nonfinite import NonfiniteWatch
from workers.runtime.parameter_comparison import ParameterComparison
from workers.runtime.process_group import build_emulation, open_process_group
from workers.runtime.progress_reports import ProgressReports, history_stride
from workers.runtime.server_lease import ServerLease
from workers.runtime.state.copy_traffic import CopyTraffic
from workers.runtime.state.durable_schedule import DurableSchedule
from workers.runtime.state.handover import HandoverServer
from workers.runtime.state.memory_points import MemoryPoints, Vote, Votes
from workers.runtime.state.moves import StateMoves
from workers.runtime.state.shards import Shard
from workers.runtime.state.sources import StateSource
from workers.runtime.synchronisation.together import Synchronisation
from workers.runtime.topology import Topology

_log = logging.getLogger(__name__)

#: Longest silence expected of a rank that takes a state over.
_TAKEN_IDLE_SECONDS = 2.0
#: How long the last recovery point in memory waits for the one before it.
_ROOM_SECONDS = 1.0


@dataclass(frozen=True)
class WorkerContext:
    """What all parts of a running worker share."""

    assignment: Assignment
    function: TrainingFunction
    connection: AgentConnection
    goals: Goals
    box: Path
    lease: ServerLease

    @property
    def artifacts(self) -> Path:
        """Folder that collects the function's own files until the job ends."""
        return self.box / "out" / ".final.partial"


def build_pace(
    assignment: Assignment, emulation: Emulation | None, parts: TrainingParts, world_size: int
) -> Pace | None:
    """Return the pace of an emulated device; None on a real one."""
    model = assignment.device.model
    if model is None or emulation is None:
        return None
    local_batch = parts.local_batch(assignment, world_size)
    return Pace(emulation, model, local_batch, parts.module)


class TrainingGeneration:
    """One rank of a training generation."""

    def __init__(self, context: WorkerContext) -> None:
        self.context = context
        self.assignment = context.assignment
        self.connection = context.connection
        self.goals = context.goals
        self.leads = context.assignment.rank == 0
        self.progress = Progress()
        self.last_values: dict[str, float] = {}
        self._handover: HandoverServer | None = None
        self._store: StoreClient | None = None
        self._memory_points: MemoryPoints | None = None
        self._reported_first = False
        #: Parts of the pause: until the state was found, and from then until it was loaded.
        self._waiting_seconds = self._loading_seconds = 0.0

    def run(self) -> int:
        """Run the generation; return the worker's exit code.

        Raises:
            WorkerFailureError: the worker cannot go on.
        """
        self._prepare()
        self.connection.phase("ready")
        self.goals.wait_for_train()
        if not self._load():
            # It has not trained: there is no state to hand over or to keep.
            self.connection.phase("suspended")
            return 0
        reason = self._train()
        return self._end(reason)

    # -- prepare

    def _prepare(self) -> None:
        assignment = self.assignment
        self.connection.phase("preparing")
        device = select_device(assignment.device)
        self.parts = build_parts(self.context.function, device, assignment.seed)
        self.parts.disk = assignment.disk_share
        self.parts.topology = Topology.of(assignment)
        check_portable(self.parts)
        self.dataset = build_dataset(self.context.function, assignment.seed)
        self._first_samples = fetch_first_samples(self.dataset, assignment.seed)
        emulation = build_emulation(assignment, self.context.box)
        self.moves = StateMoves(emulation, assignment.device.place)
        if assignment.handover_port:
            try:
                self._handover = HandoverServer(
                    assignment.interface_address or assignment.master_address,
                    assignment.handover_port,
                    assignment.secret,
                    assignment.generation,
                    self.moves,
                )
            except OSError as error:
                raise start_failed("the handover port", error) from error
        open_process_group(assignment, emulation)
        world_size = assignment.world_size
        compare_workers(self._first_samples, rank=assignment.rank, world_size=world_size)
        self.synchronisation = Synchronisation(assignment.runtime_plan, self.parts)
        self.runner = IterationRunner(
            self.parts,
            self.synchronisation,
            build_loader(assignment, self.parts, self.dataset, world_size),
            group=None,
            world_size=world_size,
            rank=assignment.rank,
            seed=assignment.seed,
            clip_norm=assignment.settings.gradient_clip_norm,
            pace=build_pace(assignment, emulation, self.parts, world_size),
        )
        self._comparison = ParameterComparison(
            self.parts.module,
            every=assignment.settings.compare_parameters_every,
            last=assignment.max_iterations,
            device=device,
            world_size=world_size,
            without=self.parts.experts.hosts,
        )
        self._windows = self._communication_windows() if self.leads else None
        self._paths = PathRecorder(self.parts.module, rank=assignment.rank, world_size=world_size)
        self._routing = routing_reports(self.runner, self.connection, leads=self.leads)
        self._capture = ShardCapture(
            self.parts,
            generation=assignment.generation,
            global_batch_size=assignment.global_batch_size,
            rank=assignment.rank,
            world_size=world_size,
        )
        self.reports = ProgressReports(self.connection, assignment.rank)
        self._nonfinite = NonfiniteWatch(
            self._tell_nonfinite if self.leads else None, stops=assignment.settings.stops_on_nonfinite
        )
        self.writer = CheckpointWriter(self.context.box, self.connection, self.moves)
        if assignment.memory_share is not None:
            self._store = StoreClient(self.context.box)
            self._memory_points = MemoryPoints(
                self._store,
                assignment.memory_share,
                self._copy_traffic(self._store, assignment.memory_share, emulation),
            )
        # The first collective of a group sets up connections: do that before the old generation stops.
        dist.all_reduce(torch.zeros(1))

    def _tell_nonfinite(self, fields: dict[str, Any]) -> None:
        self.connection.event("nonfinite", **fields)

    def _communication_windows(self) -> CommunicationWindows | None:
        """Return the reports on this generation's gradient plan; None if it has no plan to measure."""
        if self.synchronisation.measured() is None:
            return None
        runner = self.runner
        runner.times = GradientTimes(self.parts.module, self.parts.device, runner.pace)
        return CommunicationWindows(
            self.synchronisation.measured,
            runner.times,
            self.assignment.runtime_plan.digest,
            lambda fields: self.connection.event("communication_window", **fields),
        )

    def _copy_traffic(self, store: StoreClient, share: float, emulation: Emulation | None) -> CopyTraffic:
        """Return the object that sends this rank's copies when the network is idle."""

        def tell(fields: dict[str, Any]) -> None:
            if self.leads:
                self.connection.event("copy_traffic", **fields)

        traffic = CopyTraffic(
            store,
            mode=self.assignment.copy_mode,
            share=share,
            failures_per_second=self.assignment.failures_per_second,
            durable_seconds=self.assignment.checkpoint_seconds,
            most_every=self.assignment.point_iterations,
            now=time.monotonic if emulation is None else lambda: emulation.clock.at,
            tell=tell,
        )
        self.runner.traffic = traffic
        if emulation is not None:
            emulation.noted = traffic.collective
        return traffic

    # -- load

    def _load(self) -> bool:
        """Load the state; return False if rank 0's goal rose past `train` before the state came."""
        self.connection.phase("loading")
        homes = homes_of(self.parts)
        experts = self.parts.expert_states
        source = StateSource(
            self.assignment, self.goals, self.context.box, homes, experts, self.moves, self._store
        )
        state = source.take()
        if state is None:
            return False
        if state.content:
            begun = time.monotonic()
            batch = self.assignment.global_batch_size
            self.progress = restore(self.parts, state.content, global_batch_size=batch)
            self.synchronisation.load_state(state.own)
            self._paths.load_state(self.progress.expert_paths)
            self.moves.copied(state_bytes(self.parts), begun)
        else:
            self.synchronisation.begin_alike()
        self.progress.first_samples = compare_generations(self._first_samples, self.progress.first_samples)
        since_told = self.goals.seconds_since_train
        if source.found_at is not None:
            self._loading_seconds = min(since_told, time.monotonic() - source.found_at)
        self._waiting_seconds = since_told - self._loading_seconds
        _log.info("starts at iteration %d", self.progress.iteration)
        return True

    # -- train

    def _train(self) -> str:
        """Train; return the reason for the end: `max_iterations`, `target`, `should_stop`, `hand_over` or
        `suspend`."""
        limit = self.assignment.max_iterations
        self.reports.training_begins(self.progress.iteration)
        self.durable = DurableSchedule(
            self.assignment.checkpoint_seconds,
            self.assignment.safe_seconds,
            time.monotonic(),
            from_memory=(self.goals.start or {}).get("from") == "memory",
        )
        while limit is None or self.progress.iteration < limit:
            self.context.lease.require()
            self._paths.begin_iteration(self.progress.iteration)
            result = self.runner.run(self.progress.iteration, self._wish(), self._vote)
            with self._beside_the_pace():
                self._paths.end_iteration(result.values)
                self._comparison.iteration_done(self.progress.iteration + 1)
            self.durable.heard(
                result.votes, None if self._memory_points is None else self._memory_points.started_at
            )
            evaluated = self._account(result)
            reason = self._reason_to_stop(result, evaluated)
            if self._routing is not None:
                counts = result.routing.counts
                self._routing.iteration_done(self.progress.iteration, counts, is_last=reason is not None)
            self.reports.iteration_done(self.progress.iteration, result, evaluated, urgent=reason is not None)
            if not self._reported_first:
                self._reported_first = True
                self._report_first_iteration()
            if reason is not None:
                return reason
            if result.control is Control.CHECKPOINT:
                self._write_checkpoint()
            self._keep_in_memory(result.votes)
        return "max_iterations"

    def _wish(self) -> Control:
        """Return rank 0's control flag for the end of the coming iteration."""
        if not self.leads:
            return Control.GO_ON
        due = self.durable.due(time.monotonic()) and self.writer.idle()
        usual = Control.CHECKPOINT if due else Control.GO_ON
        return {"hand_over": Control.HAND_OVER, "suspend": Control.SUSPEND}.get(self.goals.goal, usual)

    def _vote(self) -> Vote:
        """Return this rank's vote on its recovery points."""
        vote = Vote() if self._memory_points is None else self._memory_points.vote()
        return replace(vote, busy=not self.writer.idle())

    def _account(self, result: IterationResult) -> dict[str, float]:
        """Account for an iteration; return the metrics of an evaluation if one was due, else {}."""
        progress = self.progress
        progress.iteration += 1
        if self._windows is not None:
            self._windows.iteration_done(progress.iteration)
        if self.leads:
            progress.sample_order_digest = chain_digest(progress.sample_order_digest, result.global_indices)
        self.last_values = result.values
        self._nonfinite.iteration_done(progress, result.values["loss"])
        every = self.assignment.settings.evaluate_every
        evaluated: dict[str, float] = {}
        if every and progress.iteration % every == 0 and progress.iteration != self.assignment.max_iterations:
            with self._beside_the_pace(), self.synchronisation.whole():
                evaluated = self.evaluate() if self.leads else {}
        if evaluated or progress.iteration % history_stride(self.assignment.max_iterations) == 0:
            progress.history.append([progress.iteration, {**result.values, **evaluated}])
        return evaluated

    def _reason_to_stop(self, result: IterationResult, evaluated: dict[str, float]) -> str | None:
        """Return why training ends, or None; the same on every rank."""
        if self.progress.iteration == self.assignment.max_iterations:
            return "max_iterations"
        reason = None
        values = {**result.values, **evaluated}
        target = self.assignment.target
        if self.leads and target is not None and target.reached(values):
            reason = "target"
        may_stop = overrides(self.context.function, "should_stop")
        asked = values if self.leads and reason is None else None
        if may_stop and function_stops(self.parts, self.synchronisation, asked):
            reason = "should_stop"
        if target is not None or may_stop:
            reason = self._agree(reason)
        if reason is not None:
            return reason
        return {Control.HAND_OVER: "hand_over", Control.SUSPEND: "suspend"}.get(result.control)

    def _agree(self, reason: str | None) -> str | None:
        """Return rank 0's reason on all ranks: only rank 0 evaluates, and a function's code may answer
        differently on other ranks."""
        answers = [None, "target", "should_stop"]
        choice = torch.tensor([answers.index(reason)], dtype=torch.int64)
        if self.assignment.world_size > 1:
            dist.broadcast(choice, src=0)
        return answers[int(choice)]

    def evaluate(self) -> dict[str, float]:
        """Return the metrics of the function's `evaluate`."""
        return evaluate(self.context.function, self.parts.module, self.assignment.seed)

    def _report_first_iteration(self) -> None:
        if self.leads:
            self.connection.event(
                "first_iteration",
                iteration=self.progress.iteration,
                pause_seconds=self.goals.seconds_since_train,
                waiting_seconds=self._waiting_seconds,
                loading_seconds=self._loading_seconds,
            )

    def _own_shard(self, *, copy: bool, leave: bool = False) -> Shard:
        begun = time.monotonic()
        own = self.synchronisation.state()
        self.progress.expert_paths = self._paths.state()
        shard = self._capture.shard(self.progress, copy=copy, own=own, leave=leave)
        self.moves.copied(shard.bytes, begun)
        return shard

    def _write_checkpoint(self) -> None:
        """Copy this rank's shard and write it in the background. If a rank still stores its last shard, the
        point stays incomplete and the previous one the newest."""
        with self._beside_the_pace():
            elsewhere = self.parts.experts.elsewhere
            if self._nonfinite.holds_back(self.progress, self.parts.module, elsewhere):
                return
            begun = time.monotonic()
            self.durable.captured(begun)
            if self.writer.idle():
                self.writer.write_later(self._own_shard(copy=True), begun)

    def _keep_in_memory(self, votes: Votes) -> None:
        """Copy this rank's shard into the node's store, if all ranks do."""
        if self._memory_points is None:
            return
        with self._beside_the_pace():
            kept = self._memory_points.keep(votes, lambda: self._own_shard(copy=False, leave=True))
            if kept and self.assignment.copy_mode is TrafficMode.BLOCKING and self._store is not None:
                self._store.wait(self._store.idle, LONGEST_COPY_SECONDS)

    @contextmanager
    def _beside_the_pace(self) -> Iterator[None]:
        """Let emulated time pass at real speed for work outside iterations."""
        begun = time.monotonic()
        yield
        if self.runner.pace is not None:
            self.runner.pace.passes(time.monotonic() - begun)

    # -- end

    def _end(self, reason: str) -> int:
        iteration = self.progress.iteration
        _log.info("stops after iteration %d: %s", iteration, reason)
        if reason == "hand_over":
            self._hand_over()
        if reason == "suspend":
            self.connection.phase("suspending", iteration)
            shard = self._own_shard(copy=False)
            self._keep_last(shard)
            path = self.writer.write_now(shard, "suspend")
            self.connection.wait_until_stored(path)
            self.connection.phase("suspended", iteration)
            return 0
        self.connection.phase("finishing", iteration)
        with self.synchronisation.whole():
            if self.leads:
                self._store_results(reason)
        self.connection.phase("completed", iteration)
        return 0

    def _hand_over(self) -> None:
        """Serve this rank's shard to the successor, then write a durable copy and wait to be stopped. Does
        not return."""
        self.connection.phase("handing_over", self.progress.iteration)
        shard = self._own_shard(copy=False)
        if self._handover is not None:
            self._handover.publish(shard)
            # Write afterwards: writing would compete with the successor for the processor.
            if not self._handover.wait_until_taken(_TAKEN_IDLE_SECONDS):
                self._keep_last(shard)
        self.writer.write_now(shard, "handover")
        self.connection.phase("handed_over", self.progress.iteration)
        threading.Event().wait()

    def _keep_last(self, shard: Shard) -> None:
        """Keep a recovery point in memory at the iteration at which all ranks stopped, for a generation that
        soon continues on this server."""
        if self._memory_points is not None and not self._memory_points.keep_last(shard, _ROOM_SECONDS):
            _log.info("the last state is not in memory: there was no room for it in time")

    def _store_results(self, reason: str) -> None:
        progress = self.progress
        evaluated = self.evaluate() if overrides(self.context.function, "evaluate") else {}
        metrics = {**self.last_values, **evaluated}
        bad = self._nonfinite.training_done(progress, self.parts.module)
        report = {
            "final": metrics,
            "iterations": progress.iteration,
            "reason": reason,
            "sample_order_digest": progress.sample_order_digest,
            "nonfinite_weights": bad,
            "history": [{"iteration": point, "values": values} for point, values in progress.history],
        }
        begun = time.monotonic()
        weights, paths = final_weights(self.parts), self._paths.found()
        path = write_final(self.context.box, self.context.artifacts, weights, report, paths)
        self.moves.stored(self.parts.parameter_bytes, begun)
        self.connection.file(
            path,
            kind="final",
            iteration=progress.iteration,
            reason=reason,
            metrics=finite(metrics),
            sample_order_digest=progress.sample_order_digest,
        )
        self.connection.wait_until_stored(path)
