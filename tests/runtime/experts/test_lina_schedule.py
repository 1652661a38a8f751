"""Mixtures train under Lina's schedule as on one worker, while experts move."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

from moe.lina.micro_operations import Traffic
from moe.lina.packing import PackingController, Reason, StepTimes
from moe.lina.scheduler import Mode
from punctual import TrainingFunction
from punctual.moe import MoELayer
from tests.communication.hooks.ranks import run_on_ranks
from tests.runtime.in_process import runner_of
from workers.runtime.iterating.iteration import IterationRunner
from workers.runtime.lina.communication import Pending
from workers.runtime.synchronisation import model
from workers.runtime.synchronisation.lina import LinaSynchroniser

RANKS, WIDTH = 4, 6
ITERATIONS = {Mode.BOUNDED_OVERLAP: 20, Mode.LEADER: 5}
EXPERT_ELEMENTS = 8 * WIDTH
#: Seconds of experts, all-to-all and step that the controller receives, by packing factor.
TIMES = {1: (0.4, 1.5, 10.0), 2: (0.8, 1.2, 9.0), 4: (1.6, 0.0, 12.0)}


class Mixed(nn.Module):
    """Two layers that drop rows. Only some samples use `sometimes`, none `never`; a bias is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, WIDTH), nn.Linear(WIDTH, 1)
        self.mixtures = nn.ModuleList(
            MoELayer(WIDTH, EXPERT_ELEMENTS // WIDTH, experts, capacity_factor=0.9) for experts in (4, 3)
        )
        self.sometimes, self.never = nn.Linear(4, WIDTH), nn.Linear(1, 1)
        self.last.bias.requires_grad_(False)

    def forward(self, points: Tensor) -> Tensor:
        tokens = self.first(points)
        uses = points.sum((1, 2)) > 0
        if uses.any():
            tokens = tokens + uses[:, None, None] * self.sometimes(points)
        for mixture in self.mixtures:
            tokens = tokens + mixture(tokens)
        outputs: Tensor = self.last(tokens)
        return outputs


class Mixture(TrainingFunction):
    def init_model(self) -> nn.Module:
        return Mixed()

    def init_dataset(self) -> TensorDataset:
        points = torch.randn(64, 3, 4, generator=torch.Generator().manual_seed(1))
        return TensorDataset(points, points.sin().sum(2, keepdim=True))

    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.1)

    def train(self, batch: Any, model: nn.Module) -> Any:
        points, targets = batch
        if self.hyperparameters.get("checkpointed"):
            return nn.functional.mse_loss(checkpoint(model, points, use_reentrant=False), targets)
        return nn.functional.mse_loss(model(points), targets)


@dataclass
class Trained:
    """The results of a rank after training under Lina's schedule.

    Attributes:
        log: operations that have ended: class, tensor, lane, length, launch, end.
        all_to_alls: calls by packing factor.
        replicas: by how much hosts of the same expert differ, after each iteration.
    """

    losses: list[float]
    parameters: list[Tensor]
    decisions: list[tuple[int, int, int, Reason]]
    log: list[tuple[Traffic, str, str, int, float, float]]
    all_to_alls: dict[int, int]
    replicas: list[float]


def begin(checkpointed: bool = False, **choices: Any) -> IterationRunner:
    kinds = [{"kind": "lina", "choices": {"partition_bytes": 90, **choices}}] if choices else []
    return runner_of(Mixture({"checkpointed": checkpointed}), batch=7, synchronisers=kinds, clip_norm=0.5)


def lina_of(runner: IterationRunner) -> LinaSynchroniser:
    schedule = runner.synchronisation.of_kind("lina")
    assert isinstance(schedule, LinaSynchroniser)
    return schedule


def compare_replicas(runner: IterationRunner, packing: int) -> float:
    """Return the total difference between hosts of the same expert."""
    experts = [parameter for name, parameter in runner.parts.module.named_parameters() if ".experts." in name]
    values = torch.cat([expert.detach().nan_to_num(0.0).flatten() for expert in experts])
    both = torch.stack([values, values.square()])
    dist.all_reduce(both)
    return float((both[1] * packing - both[0].square()).abs().sum())


def train(mode: Mode, *, checkpointed: bool, packing: int) -> Trained:
    """Train with injected times, on all ranks together."""
    calls: dict[int, int] = defaultdict(int)
    log: list[Pending] = []
    runner = begin(checkpointed, mode=mode.value, packing=packing)
    lina = lina_of(runner)
    assert lina._communication is not None
    lina._communication.on_end = log.append
    real_step, real_exchange = PackingController.after_step, dist.all_to_all_single

    def inject(controller: PackingController, iteration: int, _times: StepTimes) -> Any:
        return real_step(controller, iteration, StepTimes(*TIMES[controller.packing.factor]))

    def exchange(*arguments: Any, **keywords: Any) -> Any:
        calls[factor] += 1
        return real_exchange(*arguments, **keywords)

    losses, replicas = [], []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PackingController, "after_step", inject)
        patch.setattr(dist, "all_to_all_single", exchange)
        for iteration in range(ITERATIONS[mode]):
            runner.synchronisation.begin_iteration(iteration)
            factor = len(lina.placements["mixtures.0"].hosts[0])
            losses.append(runner.run(iteration).values["loss"])
            replicas.append(compare_replicas(runner, factor))
    decisions = [
        (decision.iteration, decision.from_factor, decision.to_factor, decision.reason)
        for decision in lina.take_decisions()
    ]
    with runner.synchronisation.whole():
        parameters = [parameter.detach().clone() for parameter in runner.parts.module.parameters()]
    runner.synchronisation.close()
    ended = [
        (pending.operation.traffic, pending.operation.tensor, pending.operation.lane,
         pending.operation.length, pending.launched_at or 0.0, pending.ended_at or 0.0)
        for pending in log
    ]  # fmt: skip
    return Trained(losses, parameters, decisions, ended, dict(calls), replicas)


def train_both() -> list[Trained]:
    return [
        train(Mode.BOUNDED_OVERLAP, checkpointed=False, packing=1),
        train(Mode.LEADER, checkpointed=True, packing=2),
    ]


def check_log(trained: Trained, sizes: set[int]) -> None:
    """Check that no all-reduce was launched beside an all-to-all, and that each was of one gradient."""
    rows = [entry for entry in trained.log if entry[0] is Traffic.ALL_TO_ALL]
    reduced = [entry for entry in trained.log if entry[0] is Traffic.ALL_REDUCE]
    for _, _, _, _, launched, _ in reduced:
        assert not any(launch < launched < end for *_, launch, end in rows)
    lengths: dict[tuple[str, str], int] = defaultdict(int)
    pieces: dict[tuple[str, str], int] = defaultdict(int)
    for _, tensor, lane, length, *_ in reduced:
        # A bucket's number gives its iteration; an expert's gradient has one name in all of them.
        lengths[tensor, lane] += length
        pieces[tensor, lane] += 1
    assert {lane for _, lane in pieces} == {"", "experts"}
    assert max(count for (_, lane), count in pieces.items() if not lane) > 1
    assert {total for (_, lane), total in lengths.items() if not lane} <= sizes
    assert not any(total % EXPERT_ELEMENTS for (_, lane), total in lengths.items() if lane)


def test_mixtures_train_as_on_one_worker_while_experts_move(alone: None) -> None:
    runner = begin()
    losses, parameters = [], []
    for iteration in range(max(ITERATIONS.values())):
        losses.append(runner.run(iteration).values["loss"])
        parameters.append([parameter.detach().clone() for parameter in runner.parts.module.parameters()])
    sizes = {parameter.numel() for parameter in parameters[0]}
    for rank, modes in enumerate(run_on_ranks(RANKS, train_both)):
        for trained in modes:
            count = len(trained.losses)
            assert trained.losses == pytest.approx(losses[:count], rel=1e-4)
            for actual, reference in (
                zip(trained.parameters, parameters[count - 1], strict=True) if not rank else ()
            ):
                assert torch.allclose(actual, reference, rtol=1e-4, atol=1e-5)
            assert max(trained.replicas) < 1e-5
            check_log(trained, sizes)
        packed, led = modes
        assert packed.decisions == [
            (10, 1, 2, Reason.EXPERTS_SHORTER),
            (14, 2, 4, Reason.EXPERTS_SHORTER),
            (18, 4, 2, Reason.STEP_LONGER),
        ]
        # Where every rank hosts every expert, no row travels.
        assert set(packed.all_to_alls) == {1, 2}
        assert set(led.all_to_alls) == {2}


def test_gradients_leave_in_the_order_of_the_backward_pass(
    alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Tensor] = []
    take = LinaSynchroniser._take_bucket

    def note(lina: LinaSynchroniser, bucket: dist.GradBucket) -> Any:
        sent.extend(bucket.parameters())
        return take(lina, bucket)

    monkeypatch.setattr(LinaSynchroniser, "_take_bucket", note)
    # As on several ranks, the gradients of the first iteration are sent after its backward pass.
    monkeypatch.setattr(model, "has_functions_in_python", lambda _loss: True)
    runner = begin(mode="bounded_overlap")
    for iteration in range(3):
        sent.clear()
        runner.run(iteration)
    names = {id(parameter): name for name, parameter in runner.parts.module.named_parameters()}
    order = [names[id(parameter)] for parameter in sent]
    # The order of the model's layers, from its end.
    expected = [
        "mixtures.1.gate_weights.weight", "mixtures.0.gate_weights.weight", "last.weight", "first.weight",
    ]  # fmt: skip
    assert [name for name in order if name in expected] == expected
