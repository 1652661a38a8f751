"""Servers that compute the experts of one model together, in rounds.

A *session* begins when a rank has a batch. Ranks with a batch compute it in the session; the others take part
without rows. In a *round* all ranks report the layer at which their batch waits. All compute the lowest such
layer; ranks that wait at another layer send no rows. A session ends when no batch is left. Ranks may thus
call the model any number of times, or fail in between, and no rank waits for a collective that another never
starts.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from moe.lina.dispatch import token_devices
from moe.lina.expert_paths import Counts
from punctual.moe import MoELayer
from punctual.moe.exchange import ComputeExpert, ExpertExchange
from workers.runtime.failures import first_line
from workers.serving.errors import NotServingError
from workers.serving.experts.counting import ExpertCounts
from workers.serving.experts.held import HeldExperts
from workers.serving.experts.meeting import Bell
from workers.serving.experts.plans import ExpertPlanner, LayerPlan
from workers.serving.experts.rounds import Header, Round, gather

_log = logging.getLogger(__name__)


@dataclass
class _Pass:
    """One layer of this rank's batch, until the round that computes it."""

    header: Header
    #: Token rows for the experts.
    rows: Tensor
    #: Results of the rows; None before.
    outputs: Tensor | None = None


@dataclass
class _Standing:
    """This rank's state. `is_waiting`: a batch waits for a session. `is_running`: it is in this session."""

    is_waiting: bool = False
    is_running: bool = False
    is_in_session: bool = False
    session: int = 0
    submitted: _Pass | None = None
    failure: str = ""
    is_closed: bool = False
    choices: dict[int, Counts] = field(default_factory=dict)


class ExpertGroup:
    """This rank's part in the group. `batch` and the model are for one thread; rounds run in another."""

    def __init__(
        self,
        layers: Mapping[str, MoELayer],
        planner: ExpertPlanner,
        device: torch.device,
        bell: Bell,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        """Manage the experts of layers in host memory, in the order in which a token passes the layers."""
        self._layers = list(layers.values())
        self._planner, self._device, self._bell, self._group = planner, device, bell, group
        self._rank, self._ranks = dist.get_rank(group), dist.get_world_size(group)
        self._most_experts = max(planner.experts)
        self._held = HeldExperts(self._layers, device)
        self.counts = ExpertCounts(
            {name: len(layer.experts) for name, layer in layers.items()}, self._ranks, self._held
        )
        self._standing = _Standing()
        self._changed = threading.Condition()
        for number, layer in enumerate(self._layers):
            layer.exchange = _ServedExchange(self, number)
            layer.records.on_choices = partial(self._note_choices, number)
            self._plan_ahead(number, None)
        self._thread = threading.Thread(target=self._work, name="experts", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> str:
        """Why the group has ended; empty: it has not."""
        return self._standing.failure

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Compute a batch within one session.

        Raises:
            NotServingError: the group has ended.
        """
        standing = self._standing
        with self._changed:
            self._require()
            standing.is_waiting = True
            if not standing.is_in_session:
                self._ring()
            self._wait_for(lambda: standing.is_running)
        try:
            yield
        finally:
            with self._changed:
                standing.is_running, standing.submitted = False, None
                self._changed.notify_all()

    def through(self, number: int, rows: Tensor, counts: Tensor) -> Tensor:
        """Return the outputs of a layer's experts for this rank's rows, which are sorted by expert.

        Raises:
            NotServingError: the group has ended.
        """
        if not self._standing.is_running:
            raise RuntimeError("a model whose experts are spread can be called within predict() only")
        ahead = self._planner.estimate(number + 1, self._standing.choices)
        header = Header(number, counts.numpy(), rows.dtype, ahead)
        with self._changed:
            self._require()
            submitted = self._standing.submitted = _Pass(header, rows)
            self._changed.notify_all()
            self._wait_for(lambda: submitted.outputs is not None)
        assert submitted.outputs is not None
        return submitted.outputs

    def close(self) -> None:
        """Stop taking part. The other ranks must do the same, or they end with a failure.

        The rounds' thread keeps waiting for a session until this process ends.
        """
        with self._changed:
            self._standing.is_closed = True
            self._standing.failure = self._standing.failure or "the group of servers has ended"
            self._changed.notify_all()
        self._held.close()

    def _note_choices(self, number: int, choices: Tensor, is_token: Tensor) -> None:
        self._standing.choices[number] = choices[is_token].cpu().numpy()

    def _require(self) -> None:
        if self._standing.failure:
            raise NotServingError(self._standing.failure)

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: condition() or bool(self._standing.failure))
        self._require()

    def _ring(self) -> None:
        try:
            self._bell.ring(self._standing.session)
        except RuntimeError as error:
            self._fail(error)
            self._require()

    # The thread of the rounds

    def _work(self) -> None:
        try:
            if self._device.type == "cuda":
                torch.cuda.set_device(self._device)
            with torch.inference_mode():
                while not self._standing.is_closed:
                    if self._bell.wait(self._standing.session):
                        self._run_session()
        except Exception as error:  # noqa: BLE001 - after any error, batches must not wait for ever
            # An end on which all ranks agreed is not a failure.
            if not self._standing.is_closed:
                _log.exception("the group of servers has ended")
                with self._changed:
                    self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Store why the group has ended; the caller holds the lock."""
        self._standing.failure = self._standing.failure or (
            f"a server of the group of {self._ranks} is lost: {first_line(error)}"
        )
        self._changed.notify_all()

    def _run_session(self) -> None:
        standing = self._standing
        with self._changed:
            standing.is_in_session = True
            standing.is_running, standing.is_waiting = standing.is_waiting, False
            self._changed.notify_all()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: not standing.is_running or standing.submitted is not None)
                own = standing.submitted
            now = gather(Header() if own is None else own.header, self._most_experts, self._group)
            if now.is_over:
                break
            self._compute(now, own if own is not None and own.header.layer == now.layer else None)
        with self._changed:
            self._bell.silence(standing.session)
            standing.session += 1
            standing.is_in_session = False
            standing.choices.clear()
            if standing.is_waiting:
                self._bell.ring(standing.session)

    def _compute(self, now: Round, own: _Pass | None) -> None:
        """Compute one layer for all ranks that wait at it; `own`: this rank's part."""
        number = now.layer
        plan = self._planner.plan(number, now.counts(self._planner.experts[number]))
        self._held.bring(number, plan.second.placement.experts_of(self._rank))
        flows = plan.flows[self._rank]
        rows, order = self._leaving(now, own, flows)
        sent = flows.sum(axis=1).tolist()
        received = plan.flows[:, self._rank].sum(axis=1).tolist()
        arrived = rows.new_empty(sum(received), rows.shape[1])
        arrives = dist.all_to_all_single(arrived, rows, received, sent, group=self._group, async_op=True)
        if number + 1 < len(self._layers):
            # While rows travel.
            self._plan_ahead(number + 1, now)
        arrives.wait()
        self._held.wait(number)
        outputs = self._compute_hosted(number, arrived, plan)
        returned = rows.new_empty(rows.shape)
        dist.all_to_all_single(returned, outputs, sent, received, group=self._group)
        self.counts.passed(number, plan)
        if own is not None:
            found = torch.empty_like(returned)
            found[order] = returned
            with self._changed:
                own.outputs = found
                self._standing.submitted = None
                self._changed.notify_all()

    def _plan_ahead(self, number: int, now: Round | None) -> None:
        popularity = None if now is None else now.ahead(self._planner.experts[number])
        first = self._planner.plan_ahead(number, popularity)
        self._held.bring(number, first.placement.experts_of(self._rank))

    def _leaving(self, now: Round, own: _Pass | None, flows: Counts) -> tuple[Tensor, Tensor]:
        """Return this rank's rows in the order of the ranks that compute them, and their original places."""
        if own is None:
            rows = torch.empty(0, self._layers[now.layer].width, dtype=now.type, device=self._device)
            return rows, torch.empty(0, dtype=torch.int64, device=self._device)
        experts = np.repeat(np.arange(flows.shape[1]), flows.sum(axis=0))
        order = torch.from_numpy(np.argsort(token_devices(experts, flows), kind="stable")).to(self._device)
        return own.rows.index_select(0, order), order

    def _compute_hosted(self, number: int, arrived: Tensor, plan: LayerPlan) -> Tensor:
        """Compute experts one after the other on rows that are sorted by source, then by expert."""
        # By source and expert.
        arriving = plan.flows[:, self._rank]
        places = torch.arange(len(arrived), device=self._device).split(arriving.flatten().tolist())
        outputs = torch.empty_like(arrived)
        experts = arriving.shape[1]
        for expert in np.flatnonzero(arriving.sum(axis=0)).tolist():
            chosen = torch.cat(places[expert::experts])
            outputs[chosen] = self._held.compute(number, expert, arrived.index_select(0, chosen))
        return outputs


class _ServedExchange(ExpertExchange):
    """The exchange of a layer in a group. Each rank has its own batch, so it sees only its own counts."""

    def __init__(self, group: ExpertGroup, number: int) -> None:
        self._served_by, self._number = group, number

    @property
    def rank(self) -> int:
        """Return 0: this rank's batch is its own."""
        return 0

    def gather(self, numbers: Tensor) -> Tensor:
        """Return this rank's numbers."""
        return numbers.cpu().unsqueeze(0)

    def exchange(self, rows: Tensor, counts: Tensor, compute: ComputeExpert) -> Tensor:
        """Let the group compute the experts."""
        return self._served_by.through(self._number, rows, counts[0])
