"""Lina's schedule in training: rows of experts take priority over gradients, and both are sent in pieces
(Lina, section 4).

DDP determines when gradients are ready and in which order all ranks send them. Instead of an all-reduce, its
hook submits the pieces of each gradient to the scheduler and returns at once; `after_backward` waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from communication.hooks.groups import open_group
from emulated_links.rates import GRADIENTS
from moe.lina.micro_operations import PARTITION_BYTES, MicroOperation, Traffic, cut
from moe.lina.packing import PackingDecision
from moe.lina.scheduler import Mode
from punctual.moe.exchange import ExpertExchange
from punctual.moe.model import ExpertParameter
from punctual.moe.placement import ExpertPlacement
from workers.runtime import own_groups
from workers.runtime.function.parts import TrainingParts
from workers.runtime.lina.communication import ScheduledCommunication
from workers.runtime.lina.exchange import PipelinedExchange
from workers.runtime.lina.expert_gradients import SharedGradients, SharedParameter
from workers.runtime.lina.packing import ExpertMemory, RuntimePacking
from workers.runtime.synchronisation.dense import DenseSynchroniser
from workers.runtime.synchronisation.expert_parallel import ExpertParallelSynchroniser
from workers.runtime.synchronisation.model import DistributedModel

_CHOICES = {"mode", "partition_bytes", "packs", "expert_bytes"}
#: Long, as the first rank publishes nothing during an evaluation, for example.
_CONTROL_TIMEOUT = timedelta(days=30)


class LinaSynchroniser(ExpertParallelSynchroniser):
    """Takes all gradients, those of experts included.

    Choices, all optional: `mode`, "bounded_overlap" or "leader"; `partition_bytes`, the largest size of a
    micro-operation; `packing`, the initial number of hosts of each expert; `packs`, whether that number
    changes during training (default true); `expert_bytes`, the memory limit for a rank's experts with their
    gradients and optimizer states (default: no limit).
    """

    supports_tiers = False
    follows_rails = False

    def __init__(self, choices: Mapping[str, Any]) -> None:
        super().__init__({name: choices[name] for name in choices if name not in _CHOICES})
        self._mode = Mode(choices.get("mode", Mode.BOUNDED_OVERLAP.value))
        if self._mode not in (Mode.BOUNDED_OVERLAP, Mode.LEADER):
            raise ValueError(f"mode is {self._mode.value}; it must be bounded_overlap or leader")
        self._partition_bytes = float(choices.get("partition_bytes", PARTITION_BYTES))
        if not self._partition_bytes > 0:
            raise ValueError(f"partition_bytes is {self._partition_bytes:g}; it must be above 0")
        limit = choices.get("expert_bytes")
        self._expert_bytes = None if limit is None else float(limit)
        self._packs = bool(choices.get("packs", True))
        # One byte: each gradient has its own bucket and waits for no other.
        self._dense = DenseSynchroniser({"gradients_in_buckets": True}, bucket_mebibytes=1 / (1 << 20))
        self._communication: ScheduledCommunication | None = None
        self._gradient_group: dist.ProcessGroup | None = None
        self._control: dist.ProcessGroup | None = None
        self._buckets = count()
        self._model: DistributedModel | None = None
        self._shared: SharedGradients | None = None
        self._controls: RuntimePacking | None = None
        self._iteration = 0
        self._due: PackingDecision | None = None
        self._decisions: list[PackingDecision] = []

    def takes(self, parts: TrainingParts, left: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
        """Return all parameters that are left."""
        super().takes(parts, left)
        return dict(left)

    def wrap(
        self,
        parts: TrainingParts,
        group: dist.ProcessGroup | None,
        parameters: Mapping[str, nn.Parameter],
    ) -> DistributedModel:
        """Connect the layers; wrap the model in a DDP whose gradients go through the scheduler.

        Raises:
            WorkerFailureError: DDP cannot train this model.
        """
        if dist.get_world_size(group) > 1:
            self._communication = self._open_communication(parts.device, group)
            self._gradient_group = open_group(GRADIENTS, group)
            own_groups.own(self._gradient_group)
        super().wrap(parts, group, parameters)
        self._controls = self._open_packing(parts)
        dense = {name: each for name, each in parameters.items() if name not in self.divided}
        self._model = model = self._dense.wrap(parts, group, dense)
        model.register_comm_hook(None, lambda _state, bucket: self._take_bucket(bucket))
        return model

    def _open_communication(
        self, device: torch.device, group: dist.ProcessGroup | None
    ) -> ScheduledCommunication:
        if self._mode is Mode.LEADER:
            self._control = open_group("control", group, backend="gloo", timeout=_CONTROL_TIMEOUT)
            own_groups.own(self._control)
        return ScheduledCommunication(self._mode, control=self._control, device=device)

    def _open_packing(self, parts: TrainingParts) -> RuntimePacking | None:
        spread = sorted({each.layer for each in self._spread.values()})
        if not self._packs or not spread or self._rows is None:
            return None
        experts = [list(self._layers[name].experts) for name in spread]
        memory = ExpertMemory(experts, parts.optimizer, self._expert_bytes)
        return RuntimePacking([len(each) for each in experts], self._ranks, self._packing, self._rows, memory)

    def exchange_for(self, name: str, placement: ExpertPlacement, group: dist.ProcessGroup) -> ExpertExchange:
        """Return an exchange that sends a layer's rows in pieces."""
        assert self._communication is not None
        return PipelinedExchange(
            placement, group, self._communication, name=name, partition_bytes=self._partition_bytes
        )

    def _place(self, placements: Mapping[str, ExpertPlacement]) -> None:
        super()._place(placements)
        if self._shared is not None:
            self._shared.close()
        self._shared = self._watch_shared() if self._communication is not None else None

    def _watch_shared(self) -> SharedGradients:
        """Watch the experts of this rank that have several hosts.

        Places that only some ranks fill are summed after the backward pass, as the first rank, which may
        lead, does not know them.
        """
        assert self._parts is not None
        layers: dict[str, list[SharedParameter]] = {}
        for name in dict.fromkeys(each.layer for each in self._spread.values()):
            placement = self.placements[name]
            everywhere = min(len(placement.hosted_by(rank)) for rank in range(placement.ranks))
            hosted = placement.hosted_by(self._parts.experts.rank)[:everywhere]
            layers[name] = [
                SharedParameter(
                    full_name,
                    f"{name}.{hosted.index(each.expert)}.{_name_in_expert(full_name, each)}",
                    each.parameter,
                    self._hosts.of(placement.hosts[each.expert]),
                )
                for full_name, each in self._spread.items()
                if each.layer == name and each.expert in hosted and len(placement.hosts[each.expert]) > 1
            ]
        return SharedGradients(layers, self._reduce_shared, lambda: self._averages)

    @property
    def _averages(self) -> bool:
        return self._model is not None and self._model.averages

    def _reduce_shared(self, name: str, gradient: Tensor, group: dist.ProcessGroup | None) -> None:
        self._reduce(name, gradient, group, lane="experts")

    def _take_bucket(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """Submit the gradients of a bucket. They are reduced in place after DDP's own work has ended."""
        buffer = bucket.buffer()
        if self._communication is not None:
            buffer.div_(self._ranks)
            name = f"bucket {next(self._buckets)}"
            for number, gradient in enumerate(bucket.gradients()):
                self._reduce(f"{name}/{number}", gradient, self._gradient_group)
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(buffer)
        return future

    def _reduce(self, name: str, gradient: Tensor, group: dist.ProcessGroup | None, lane: str = "") -> None:
        """Submit the in-place all-reduce of one gradient in pieces."""
        assert self._communication is not None
        values = gradient.detach().view(-1)
        pieces = cut(
            Traffic.ALL_REDUCE, name, len(values), values.element_size(), self._partition_bytes, lane
        )
        self._communication.submit((piece, _begin_sum(values, piece, group)) for piece in pieces)

    def begin_alike(self) -> None:
        """Give every rank the first one's values, and each host those of its experts."""
        super().begin_alike()
        self._dense.begin_alike()

    def begin_iteration(self, iteration: int) -> None:
        """Move experts if a packing decision is due."""
        self._iteration = iteration
        decision, self._due = self._due, None
        if decision is not None:
            spread = {each.layer for each in self._spread.values()}
            placements = self.packed(decision.to_factor)
            self.move_to({name: placements[name] for name in spread})
        if self._controls is not None:
            self._controls.begin()

    def after_backward(self) -> None:
        """Wait for all pieces; turn sums over the ranks into means.

        Raises:
            RuntimeError: a peer is gone.
            WorkerFailureError: an expert of another rank has a gradient.
        """
        if self._communication is not None:
            assert self._shared is not None
            self._shared.submit_rest()
            self._communication.flush()
        super().after_backward()
        if self._controls is not None:
            self._decide(self._controls)

    def sum_over_hosts(self, gradients: Mapping[str, Tensor]) -> None:
        """Sum the gradients that did not go through the scheduler."""
        done = self._shared.names if self._shared is not None else ()
        super().sum_over_hosts({name: each for name, each in gradients.items() if name not in done})

    def _decide(self, controls: RuntimePacking) -> None:
        exchanges = [layer.exchange for layer in self._layers.values()]
        pipelined = [each for each in exchanges if isinstance(each, PipelinedExchange)]
        decision = controls.end(self._iteration, pipelined)
        if decision is None:
            return
        self._decisions.append(decision)
        if decision.to_factor != decision.from_factor:
            self._due = decision

    def take_decisions(self) -> list[PackingDecision]:
        """Return the packing decisions since the last call."""
        taken, self._decisions = self._decisions, []
        return taken

    def close(self) -> None:
        """Disconnect the layers; end threads and groups."""
        if self._shared is not None:
            self._shared.close()
        if self._communication is not None:
            self._communication.close()
        super().close()
        for group in (self._gradient_group, self._control):
            if group is not None:
                own_groups.disown(group)
                dist.destroy_process_group(group)


def _name_in_expert(name: str, parameter: ExpertParameter) -> str:
    return name.removeprefix(f"{parameter.layer}.experts.{parameter.expert}.".lstrip("."))


def _begin_sum(values: Tensor, piece: MicroOperation, group: dist.ProcessGroup | None) -> Any:
    part = values[piece.first : piece.first + piece.length]
    return lambda: dist.all_reduce(part, group=group, async_op=True)
