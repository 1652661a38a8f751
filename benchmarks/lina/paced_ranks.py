"""A small mixture of experts on ranks whose links and computation take declared times."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from emulated_links.rates import EXPERTS, GRADIENTS
from emulated_links.shared_link import SharedLink
from moe.lina.calibration import INTERFERENCE
from moe.lina.micro_operations import MicroOperation, Traffic
from moe.lina.scheduler import Mode
from moe.lina.shared_link import Rates
from moe.lina.training_step import StepModel
from punctual.moe import MoELayer, TopK
from workers.runtime.function.parts import TrainingParts
from workers.runtime.lina.communication import Begin, Pending, ScheduledCommunication
from workers.runtime.synchronisation.lina import LinaSynchroniser

LINKS = {"fair": Rates(), "interference": INTERFERENCE}
VARIANTS = ("baseline", "unpacked", "lina")
WIDTH, ROWS = 128, 1024
PAYLOAD_BYTES = ROWS * WIDTH * 4


@dataclass(frozen=True)
class Setting:
    """One model on some ranks. Times are of the forward pass of one layer, in units; backward twice as long.

    Attributes:
        all_to_all: one all-to-all of all ranks, alone on the link.
        gradients: all-reduce of one layer.
        packing: hosts of each expert under Lina.
        pieces: micro-operations of an all-to-all under Lina.
    """

    ranks: int
    all_to_all: float
    packing: int
    attention: float = 0.28
    gate: float = 0.08
    combine: float = 0.74
    expert: float = 0.52
    gradients: float = 1.4
    layers: int = 4
    pieces: int = 4
    unit_seconds: float = 0.15

    @property
    def bytes_per_second(self) -> float:
        """Rate of each rank's link."""
        return PAYLOAD_BYTES * (self.ranks - 1) / self.ranks / (self.all_to_all * self.unit_seconds)

    @property
    def gradient_elements(self) -> int:
        """Elements of one layer's gradient."""
        on_link = self.gradients * self.unit_seconds * self.bytes_per_second
        return int(on_link * self.ranks / (2 * (self.ranks - 1)) / 4)

    @property
    def bucket_elements(self) -> int:
        """Elements that the baseline fuses before it sends them."""
        return int(1.37 * self.gradient_elements)

    @property
    def hidden(self) -> int:
        """Inner width of an expert, so that the all-reduces of packed ones take 0.3 units a layer."""
        on_link = 0.3 * self.unit_seconds * self.bytes_per_second
        return max(1, int(on_link / (2 * (self.packing - 1)) / (2 * WIDTH * 4)))

    def model(self, rates: Rates) -> StepModel:
        """Return the simulator's input."""
        unit_bytes = self.bytes_per_second * self.unit_seconds
        groups = (self.ranks, self.ranks // self.packing)
        expert_bytes = self.packing * 2 * WIDTH * self.hidden * 4
        return StepModel(
            layers=self.layers,
            attention=self.attention,
            gate=self.gate,
            combine=self.combine,
            expert=self.expert,
            gradients=self.gradients,
            all_to_all={group: PAYLOAD_BYTES * (group - 1) / group / unit_bytes for group in groups},
            rates=rates,
            bucket=1.37 * self.gradients,
            # A piece is of bytes of a tensor, which cross the link nearly twice.
            piece=PAYLOAD_BYTES / self.pieces * 2 * (self.ranks - 1) / self.ranks / unit_bytes,
            expert_gradients=2 * (self.packing - 1) / self.packing * expert_bytes / unit_bytes,
            pieces=self.pieces,
        )


SETTINGS = {
    4: Setting(4, all_to_all=0.66, packing=2),
    8: Setting(8, all_to_all=0.78, packing=4),
}


class Clock:
    """Emulated time of a rank's computation, on the monotonic clock. It is never ahead of that clock; a host
    that is late for a while catches up. One per process."""

    def __init__(self) -> None:
        self.at = time.monotonic()

    def begin(self) -> None:
        """Let all ranks begin at one instant."""
        at = torch.tensor([time.monotonic() + 0.05], dtype=torch.float64)
        dist.all_reduce(at, op=dist.ReduceOp.MAX)
        self.at = float(at)
        self.spend(0.0)

    def spend(self, seconds: float) -> None:
        """Compute for ``seconds``."""
        self.at += seconds
        time.sleep(max(0.0, self.at - time.monotonic()))

    def reach(self, at: float) -> None:
        """Advance to `at` if it is later."""
        self.at = max(self.at, at)


CLOCK = Clock()


class PacedLink:
    """The link of a rank. Transfers of both classes share it, in emulated time."""

    def __init__(self, bytes_per_second: float, rates: Rates) -> None:
        shares = {EXPERTS: rates.all_to_all, GRADIENTS: rates.all_reduce}
        self._link = SharedLink(bytes_per_second, shares)
        self._changed = threading.Condition()

    def begin(self, traffic: Traffic, size: float, at: float) -> Callable[[], float]:
        """Begin a transfer at `at`; return a call that waits for its end and returns the time of the end."""
        name = EXPERTS if traffic is Traffic.ALL_TO_ALL else GRADIENTS
        with self._changed:
            self._link.advance(time.monotonic())
            transfer = self._link.add(name, int(size), at)
            self._changed.notify_all()

        def wait() -> float:
            with self._changed:
                while True:
                    self._link.advance(time.monotonic())
                    if transfer.ended_at is not None:
                        self._changed.notify_all()
                        return transfer.ended_at
                    end = self._link.next_end()
                    assert end is not None
                    self._changed.wait(max(0.0, end - time.monotonic()) + 1e-4)

        return wait


@dataclass
class PacedWork:
    """A collective that ends once it has arrived and the link has carried it."""

    work: Any
    carried: Callable[[], float]
    note_end: Callable[[float], None]
    is_noted: bool = False

    def wait(self) -> None:
        """Wait for both."""
        if not self.is_noted:
            self.work.wait()
            self.note_end(self.carried())
            self.is_noted = True


@dataclass
class Several:
    """Several collectives as one."""

    works: Sequence[Any]

    def wait(self) -> None:
        """Wait for all."""
        for work in self.works:
            work.wait()


class PacedCommunication(ScheduledCommunication):
    """Operations over a paced link; waiting for them advances emulated time.

    Attributes:
        packing: hosts of each expert.
    """

    def __init__(self, mode: Mode, link: PacedLink, ranks: int) -> None:
        control = dist.new_group(list(range(ranks))) if mode is Mode.LEADER else None
        self.link, self.ranks, self.packing = link, ranks, 1
        self._released_at = CLOCK.at
        #: When the last operation of each class ended.
        self._free_at = dict.fromkeys(Traffic, CLOCK.at)
        self.spans: dict[MicroOperation, tuple[float, float]] = {}
        super().__init__(mode, control=control)

    def submit(self, operations: Iterable[tuple[MicroOperation, Begin]]) -> list[Pending]:
        """Submit operations with the bytes that cross this rank's link."""
        at = CLOCK.at
        paced = [(operation, self._paced(operation, begin, at)) for operation, begin in operations]
        if any(operation.traffic is Traffic.ALL_TO_ALL for operation, _ in paced):
            self._released_at = at
        submitted = super().submit(paced)
        for pending in submitted:
            pending.wait = partial(self._wait_paced, pending, pending.wait)  # type: ignore[method-assign]
        return submitted

    def hold(self) -> None:
        """Hold all-reduces back, except in the baseline."""
        if self.mode is not Mode.TWO_STREAMS:
            super().hold()

    def flush(self) -> None:
        """Wait for everything."""
        super().flush()
        CLOCK.reach(max(self._free_at.values()))

    def take_all_to_all_seconds(self) -> float:
        """Return the time during which an all-to-all was under way since the last call."""
        covered, until = 0.0, float("-inf")
        spans = sorted(span for one, span in self.spans.items() if one.traffic is Traffic.ALL_TO_ALL)
        for began, ended in spans:
            covered += max(0.0, ended - max(began, until))
            until = max(until, ended)
        self.spans.clear()
        return covered

    def _wait_paced(self, pending: Pending, wait: Callable[[], None]) -> None:
        wait()
        if pending.operation in self.spans:
            CLOCK.reach(self.spans[pending.operation][1])

    def _paced(self, operation: MicroOperation, begin: Begin, submitted_at: float) -> Begin:
        traffic = operation.traffic
        if operation.tensor.endswith("/counts"):
            return begin
        if traffic is Traffic.ALL_TO_ALL:
            group = self.ranks // self.packing
            size = PAYLOAD_BYTES / operation.pieces * (group - 1) / group
        else:
            members = self.packing if operation.lane else self.ranks
            size = operation.length * 4 * 2 * (members - 1) / members

        def launch() -> Any:
            at = submitted_at
            if self.mode is Mode.TWO_STREAMS:
                at = max(at, self._free_at[traffic])
            elif traffic is Traffic.ALL_REDUCE:
                at = max(at, self._released_at, *self._free_at.values())
            elif self.mode is Mode.LEADER:
                at = max(at, *self._free_at.values())
            carried = self.link.begin(traffic, size, at)
            return PacedWork(begin(), carried, partial(self._note_end, operation, at))

        return launch

    def _note_end(self, operation: MicroOperation, began: float, ended: float) -> None:
        self.spans[operation] = (began, ended)
        self._free_at[operation.traffic] = max(self._free_at[operation.traffic], ended)


class PacedLina(LinaSynchroniser):
    """Lina's synchroniser over a paced link."""

    def __init__(self, setting: Setting, rates: Rates, mode: Mode, packing: int) -> None:
        super().__init__(
            {"packing": packing, "packs": False, "partition_bytes": PAYLOAD_BYTES / setting.pieces}
        )
        self.setting, self.rates, self.used_mode = setting, rates, mode

    def _open_communication(
        self, device: torch.device, group: dist.ProcessGroup | None
    ) -> ScheduledCommunication:
        link = PacedLink(self.setting.bytes_per_second, self.rates)
        self.paced = PacedCommunication(self.used_mode, link, self.setting.ranks)
        self.paced.packing = self._packing
        return self.paced


class Baseline(PacedLina):
    """Fused gradients and whole exchanges, each class of traffic in a stream of its own, as without Lina."""

    def __init__(self, setting: Setting, rates: Rates, mode: Mode, packing: int) -> None:
        super().__init__(setting, rates, Mode.TWO_STREAMS, 1)
        self._partition_bytes = float("inf")
        self._fused: list[Tensor] = []
        self._number = 0

    def _reduce(self, name: str, gradient: Tensor, group: dist.ProcessGroup | None, lane: str = "") -> None:
        self._fused.append(gradient)
        if sum(each.numel() for each in self._fused) >= self.setting.bucket_elements:
            self._send()

    def _send(self) -> None:
        gradients, self._fused = self._fused, []
        if not gradients:
            return
        self._number += 1
        length = sum(each.numel() for each in gradients)
        operation = MicroOperation(Traffic.ALL_REDUCE, f"fused {self._number}", length=length)

        def begin() -> Any:
            return Several(
                [dist.all_reduce(each, group=self._gradient_group, async_op=True) for each in gradients]
            )

        self.paced.submit([(operation, begin)])

    def after_backward(self) -> None:
        """Send the rest; wait for everything."""
        self._send()
        super().after_backward()


class _Slept(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        CLOCK.spend(seconds)
        return tokens.view_as(tokens)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        CLOCK.spend(2 * ctx.seconds)
        return gradients[0], None


def spend(tokens: Tensor, seconds: float) -> Tensor:
    """Take time with tokens, and twice as much with their gradient."""
    spent: Tensor = _Slept.apply(tokens, seconds)
    return spent


class SlowExpert(nn.Module):
    """An expert that takes the declared time for its rows."""

    def __init__(self, inner: nn.Module, seconds_per_row: float) -> None:
        super().__init__()
        self.inner, self.seconds_per_row = inner, seconds_per_row

    def forward(self, rows: Tensor) -> Tensor:
        """Return the outputs."""
        return spend(self.inner(rows), self.seconds_per_row * len(rows))


class Layer(nn.Module):
    """A dense part, then a mixture of experts over which tokens are spread evenly."""

    route: Tensor

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        unit = setting.unit_seconds
        self.experts = setting.ranks
        self.before, self.combine = (setting.attention + setting.gate) * unit, setting.combine * unit
        self.dense = nn.Parameter(torch.zeros(setting.gradient_elements))
        self.moe = MoELayer(WIDTH, setting.hidden, setting.ranks, gate=TopK(1), balance_weight=0.0)
        self.moe.gate_weights.requires_grad_(False)
        with torch.no_grad():
            self.moe.gate_weights.weight.zero_()
            self.moe.gate_weights.weight[:, : setting.ranks] = 50.0 * torch.eye(setting.ranks)
        for number, expert in enumerate(self.moe.experts):
            self.moe.experts[number] = SlowExpert(expert, setting.expert * unit / ROWS)
        self.register_buffer("route", torch.eye(setting.ranks)[torch.arange(ROWS) % setting.ranks])

    def forward(self, tokens: Tensor) -> Tensor:
        """Transform tokens of shape (1, rows, width)."""
        tokens = spend(tokens + self.dense.mean(), self.before)
        routed = torch.cat([self.route.unsqueeze(0), tokens[..., self.experts :]], dim=-1)
        outputs: Tensor = self.moe(routed)
        return outputs

    def slow_combination(self) -> None:
        """Give the combination its time; its backward pass begins after the hold."""
        exchange = self.moe.exchange
        watch = exchange.watch_combined
        exchange.watch_combined = lambda combined: watch(spend(combined, self.combine))  # type: ignore[method-assign]


def parts_of(model: nn.Module) -> TrainingParts:
    """Return a model and its optimizer as the runtime has them."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    return TrainingParts(cast(Any, SimpleNamespace()), model, optimizer, None, torch.device("cpu"))
