"""One iteration: forward, backward, synchronisation, clipping, step, and the exchange of control, votes and
metrics among all ranks.

Training and profiling run the same code, so a profile describes the training that follows.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.optim.lr_scheduler import ReduceLROnPlateau

from punctual.randomness import derive_seed, enter_iteration, seed_generators
from workers.runtime.data.batches import BatchLoader, LocalBatch
from workers.runtime.data.curriculum import SampleCounts
from workers.runtime.data.task_times import TaskTimes
from workers.runtime.emulation.pace import Pace
from workers.runtime.failures import WorkerFailureError, blaming_the_function
from workers.runtime.function.leftover_steps import LeftoverSteps
from workers.runtime.function.parts import TrainingParts
from workers.runtime.function.returned import METRIC_SLOTS, loss_and_metrics, refused
from workers.runtime.function.undeclared_state import UndeclaredState
from workers.runtime.iterating.mixtures import Mixtures, RoutingOfIteration
from workers.runtime.iterating.trained_parameters import TrainedParameters
from workers.runtime.measuring.gradient_times import GradientTimes
from workers.runtime.measuring.row_times import RowTimes
from workers.runtime.process_group import sum_beside
from workers.runtime.state.copy_traffic import CopyTraffic
from workers.runtime.state.memory_points import Vote, Votes
from workers.runtime.synchronisation.together import Synchronisation
from workers.runtime.synchronisation.words import in_our_words


class Control(IntEnum):
    """Rank 0's instruction to all ranks for the end of this iteration."""

    GO_ON = 0
    HAND_OVER = 1
    SUSPEND = 2
    LEVEL_DONE = 3
    CHECKPOINT = 4


@dataclass(frozen=True)
class IterationResult:
    """Facts that all ranks share after an iteration.

    Attributes:
        values: loss and metrics, averaged over the global batch.
        seconds: the whole iteration, waiting for other ranks and an emulated device's padding included.
        train_seconds: the function's forward and backward pass alone.
        votes: the ranks' votes on recovery points in memory, combined.
        routing: how the gates routed the tokens of the global batch.
    """

    control: Control
    values: dict[str, float]
    seconds: float
    train_seconds: float
    global_indices: Tensor
    votes: Votes
    routing: RoutingOfIteration


class IterationRunner:
    """Runs iterations of one rank in one process group."""

    def __init__(
        self,
        parts: TrainingParts,
        synchronisation: Synchronisation,
        loader: BatchLoader,
        *,
        group: dist.ProcessGroup | None,
        world_size: int,
        rank: int,
        seed: int,
        clip_norm: float | None,
        pace: Pace | None,
    ) -> None:
        self.parts = parts
        self.model = synchronisation.model
        self.synchronisation = synchronisation
        self.loader = loader
        self.pace = pace
        self._group = group
        self._world_size = world_size
        self._rank = rank
        self._seed = seed
        self._clip_norm = clip_norm
        self._clock = TrainClock(parts)
        #: Receives the network's busy times; None where no copies of recovery points are sent.
        self.traffic: CopyTraffic | None = None
        #: Records when gradients become ready; None where that is not measured.
        self.times: GradientTimes | None = None
        self.rows = RowTimes(parts.module, parts.device, pace)
        self._trained = TrainedParameters(parts, group, world_size)
        self._leftover = LeftoverSteps(parts)
        self._undeclared = UndeclaredState(parts, tells=rank == 0)
        self._mixtures = Mixtures(parts)
        order = parts.curriculum
        self._sample_counts = None if order is None else SampleCounts(order, parts.module, group)
        self._task_times = TaskTimes(parts.tasks, group, rank=rank, world_size=world_size)

    def run(
        self, iteration: int, control: Control = Control.GO_ON, vote: Callable[[], Vote] = Vote
    ) -> IterationResult:
        """Compute iteration `iteration` on all ranks of the group.

        Args:
            control: rank 0's request; values of other ranks are ignored.
            vote: called after the backward pass; returns this rank's vote on recovery points in memory.

        Raises:
            WorkerFailureError: the function raised, or a peer is gone.
        """
        started = time.perf_counter()
        if self.pace is not None:
            self.pace.begin()
        if self.traffic is not None:
            self.traffic.begins()
        if self.times is not None:
            self.times.begins()
        self.rows.begins()
        batch = self.loader.load(iteration)
        self.synchronisation.begin_iteration(iteration)
        self._mixtures.begin_iteration(batch.weight / self._world_size)
        loss, metrics = self._forward(iteration, batch)
        if self._sample_counts is not None:
            self._sample_counts.begin(batch, self._world_size)
        whole_loss = self._mixtures.with_balance(loss)
        backward_began = time.monotonic()
        if self.times is not None:
            self.times.backward_begins()
        self.rows.backward_begins()
        self._trained.check()
        self.synchronisation.before_backward(whole_loss)
        self._backward(whole_loss, batch, averaged=True)
        self.synchronisation.after_backward()
        if self.times is not None:
            self.times.synchronised()
        if self.traffic is not None and self.pace is None:
            # On a real device, the network's idle times within the backward pass are unknown.
            self.traffic.collective(backward_began, time.monotonic())
        # The exchange runs while the optimizer steps. It starts this late so that copies of the last point
        # can use the idle times of both passes, and reading the loss does not delay the backward pass.
        usage = self.synchronisation.usage
        exchange = Exchange(
            control, vote(), loss, metrics, batch, self._group, self._rank, self._world_size,
            trained=self._trained.fingerprint, flags=usage.flags, routing=self._mixtures.take_routing(),
        )  # fmt: skip
        self._task_times.begin()
        if self._trained.late:
            exchange.result()  # raises unless all ranks train the same parameters
            self._trained.synchronise()
        used = not usage.is_partial or self.synchronisation.drop_unused(exchange.flags())
        if not used and all(each.grad is None for each in self._trained.late):
            raise refused(
                "train() returned a loss that depends on none of the model's parameters: compute it with the "
                "model that train() is given"
            )
        self._clip()
        with blaming_the_function("the optimizer"):
            self.parts.optimizer.step()
        self._forget_gradients()
        control, votes, values, routing = exchange.result()
        if self._sample_counts is not None:
            self._sample_counts.end(batch)
        self._step_scheduler(values["loss"])
        self._undeclared.iteration_done()
        train_seconds = self._clock.seconds()
        if self.pace is not None:
            self.pace.end()
            train_seconds = max(train_seconds, self.pace.compute_seconds)
        values |= self._task_times.end(train_seconds)
        if self.traffic is not None:
            self.traffic.ends()
        if self.times is not None:
            self.times.ends()
        self.rows.ends()
        return IterationResult(
            control,
            values,
            time.perf_counter() - started,
            train_seconds,
            batch.global_indices,
            votes,
            routing,
        )

    def rehearse(self, iteration: int, *, workers: int | None = None) -> None:
        """Run an iteration on this rank alone: gradients are not synchronised, no rank waits for another.

        Args:
            workers: take the first worker's part of the batch, as divided among this many workers.

        Raises:
            WorkerFailureError: the function raised.
        """
        loader = self.loader if workers is None else self.loader.first_of(workers)
        batch = loader.load(iteration)
        with self.synchronisation.rehearsing():
            loss, _metrics = self._forward(iteration, batch)
            self._backward(self._mixtures.with_balance(loss), batch, averaged=False)
        with blaming_the_function("the optimizer"):
            self.parts.optimizer.step()
        self._forget_gradients()

    def _forget_gradients(self) -> None:
        """Clear all gradients; those of parameters that the optimizer does not step would accumulate."""
        self.parts.optimizer.zero_grad(set_to_none=True)
        self.parts.module.zero_grad(set_to_none=True)

    def _forward(self, iteration: int, batch: LocalBatch) -> tuple[Tensor, dict[str, float]]:
        """Call the function's `train`; return the local mean loss and metrics."""
        enter_iteration(self._seed, iteration, batch.indices)
        seed_generators(derive_seed(self._seed, "train", iteration, batch.first_place))
        self.parts.module.train()
        self._clock.start()
        # A function may leave gradients switched off.
        with (
            self._telling_its_part(batch), blaming_the_function("train()"), self._leftover.refused(),
            torch.enable_grad(), self.model.lend() as module,
        ):  # fmt: skip
            returned = self.parts.function.train(batch.content, module)
        if self.pace is not None:
            self.pace.forward_done()
        self._clock.forward_done()
        if self.synchronisation.usage.has_gradients:
            raise refused("train() must not call backward(): return the loss, and the runtime does the rest")
        return loss_and_metrics(returned)

    @contextmanager
    def _telling_its_part(self, batch: LocalBatch) -> Iterator[None]:
        """Add this worker's share of the batch to an error in `train`: the share may be the cause."""
        try:
            yield
        except WorkerFailureError as failure:
            whole = len(batch.global_indices)
            if batch.size == whole or not failure.traceback_text:  # refusals have no traceback
                raise
            raise WorkerFailureError(
                failure.reason,
                f"{failure.message}; a worker has {batch.size} of the batch's {whole} samples",
                failure.traceback_text,
                out_of_memory=failure.out_of_memory,
            ) from failure

    def _backward(self, loss: Tensor, batch: LocalBatch, *, averaged: bool) -> None:
        self._clock.backward_begins()
        if self.pace is not None:
            self.pace.backward_begins()
        with blaming_the_function("the backward pass"), in_our_words():
            (loss * batch.weight).backward()
            if averaged:
                self.synchronisation.gradients_are_there(in_pieces=self._clock.saw_pieces)
        if self.pace is not None:
            self.pace.backward_done()

    def _clip(self) -> None:
        """Scale gradients down to the configured norm; sparse ones by their values."""
        if self._clip_norm is None:
            return
        gradients: list[Tensor] = []
        # Gradients of this rank's experts; `counted` are those that no other rank counts too.
        of_experts: list[Tensor] = []
        counted: list[Tensor] = []
        experts = self.parts.experts
        for name, parameter in self.parts.module.named_parameters():
            if parameter.grad is None:
                continue
            if parameter.grad.is_sparse:
                parameter.grad = parameter.grad.coalesce()
                gradients.append(parameter.grad._values())
            elif name in experts.hosts:
                of_experts.append(parameter.grad)
                counted += [parameter.grad] if experts.is_owned(name) else []
            else:
                gradients.append(parameter.grad)
        total = get_total_norm(gradients)
        if experts.hosts:
            squares = get_total_norm(counted).square().to(total)
            dist.all_reduce(squares, group=self._group)
            total = (total.square() + squares).sqrt()
        scale = torch.clamp(self._clip_norm / (total + 1e-6), max=1.0)
        for gradient in (*gradients, *of_experts):
            gradient.mul_(scale.to(gradient.device))

    def _step_scheduler(self, loss: float) -> None:
        scheduler = self.parts.scheduler
        if scheduler is None:
            return
        with blaming_the_function("the scheduler"):
            if isinstance(scheduler, ReduceLROnPlateau):
                scheduler.step(loss)
            else:
                scheduler.step()


class Exchange:
    """One small all-reduce per iteration: rank 0's control flag, all ranks' votes, the weighted loss and
    metrics."""

    def __init__(
        self,
        control: Control,
        vote: Vote,
        loss: Tensor,
        metrics: Mapping[str, float],
        batch: LocalBatch,
        group: dist.ProcessGroup | None,
        rank: int,
        world_size: int,
        *,
        trained: float,
        flags: Tensor,
        routing: RoutingOfIteration,
    ) -> None:
        """Start the exchange.

        Args:
            trained: the fingerprint of the trained parameters.
            flags: which parameters this rank used.
            routing: how this rank's gates routed tokens.

        Raises:
            WorkerFailureError: there are more metrics than room.
        """
        self._names = sorted(metrics)
        if len(self._names) > METRIC_SLOTS:
            raise WorkerFailureError(
                "function_error",
                f"train() returned {len(self._names)} metrics, at most {METRIC_SLOTS} are kept",
            )
        self._fingerprint = _fingerprint(self._names)
        self._trained = trained
        self._world_size = world_size
        told = [vote.ready, vote.spoiled, vote.safe, vote.lacking, vote.busy]
        head = [int(control) if rank == 0 else 0, *told, batch.size, trained, self._fingerprint]
        # A rank without samples has computed a borrowed one to take part in collectives: it does not count.
        averaged = [loss.detach().item(), *(metrics[name] for name in self._names)] if batch.size else []
        values = head + [value * batch.size for value in averaged]
        values += [0.0] * (len(head) + 1 + METRIC_SLOTS - len(values))
        self._routing = routing
        values += [balance * batch.size for balance in routing.balances]
        values += routing.tiers
        self._values = len(values)
        self._vector = torch.cat([torch.tensor(values, dtype=torch.float64), flags])
        self._work = sum_beside(self._vector, group) if world_size > 1 else None

    def flags(self) -> Tensor:
        """The sums of all ranks' flags."""
        self._wait()
        return self._vector[self._values :]

    def _wait(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            work.wait()

    def result(self) -> tuple[Control, Votes, dict[str, float], RoutingOfIteration]:
        """Return rank 0's control flag, all ranks' votes, and loss, metrics and routing of the global batch.

        Raises:
            WorkerFailureError: ranks returned different metrics.
        """
        self._wait()
        told = self._vector[: self._values].tolist()
        control, ready, spoiled, safe, lacking, busy, samples, trained, fingerprints, *totals = told
        if trained != self._trained * self._world_size:
            raise refused(
                "train() must freeze and unfreeze the same parameters on all workers: let requires_grad "
                "depend on current_iteration(), not on the local batch"
            )
        if fingerprints != self._fingerprint * self._world_size:
            raise refused(
                f"train() returned the metrics {self._names} for this worker's part of the batch, and others "
                "for another part: return the same names for every batch, such as 0.0 beside a count"
            )
        names = ["loss", *self._names]
        world_size = self._world_size
        votes = Votes(int(ready) == world_size, spoiled > 0, int(safe) == world_size, lacking > 0, busy > 0)
        means = [total / samples for total in totals]
        tiers = len(totals) - len(self._routing.tiers)
        routing = self._routing.with_balances(means[1 + METRIC_SLOTS : tiers])
        routing = routing.with_tiers(totals[tiers:], world_size)
        values = routing.metrics() | dict(zip(names, means, strict=False))
        return Control(int(control)), votes, values, routing


class TrainClock:
    """Times `train()` and the backward pass without the wait for other ranks.

    DDP ends the backward pass by waiting for the gradients' all-reduce. The function's own time ends when the
    last gradient has been computed, which a hook on each parameter records.
    """

    def __init__(self, parts: TrainingParts) -> None:
        self._cuda = parts.device.type == "cuda"
        self._marks: list[Any] = []
        self._last: Any = None
        self._pieces, self._ready = 0, set[int]()
        for parameter in parts.module.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._gradient_ready)

    def _now(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _gradient_ready(self, parameter: Tensor) -> None:
        self._last = self._now()
        self._pieces += 1
        self._ready.add(id(parameter))

    @property
    def saw_pieces(self) -> bool:
        """Whether a gradient of the backward pass came in several pieces."""
        return self._pieces > len(self._ready)

    def start(self) -> None:
        """Note that `train()` begins."""
        self._marks = [self._now()]

    def forward_done(self) -> None:
        """Note that `train()` has returned."""
        self._marks.append(self._now())

    def backward_begins(self) -> None:
        """Note that the backward pass begins."""
        self._pieces, self._ready = 0, set()
        self._marks.append(self._now())
        self._last = self._marks[-1]

    def seconds(self) -> float:
        """Seconds of the last iteration's forward and backward pass."""
        begun, forward_done, backward_begun = self._marks
        if not self._cuda:
            return float(forward_done - begun + self._last - backward_begun)
        self._last.synchronize()
        return float(begun.elapsed_time(forward_done) + backward_begun.elapsed_time(self._last)) / 1000


def _fingerprint(names: list[str]) -> float:
    """Return 40 bits of a hash of the names: sums over thousands of ranks stay exact in a float64."""
    digest = hashlib.sha256("\0".join(names).encode()).digest()
    return float(int.from_bytes(digest[:5], "little"))


def finite(values: Mapping[str, float]) -> dict[str, float]:
    """Return the finite values: JSON has neither NaN nor infinity."""
    return {name: value for name, value in values.items() if math.isfinite(value)}
