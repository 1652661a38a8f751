"""Experts have several hosts, and move between ranks during training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from emulated_links.rates import EXPERTS, GRADIENTS, NETWORK, STATE, ServerLinks
from punctual import TrainingFunction
from punctual.moe import MoELayer, TopK
from tests.communication.hooks.ranks import run_on_ranks
from tests.runtime.conftest import emulated
from tests.runtime.in_process import CPU, runner_of
from workers.runtime.at_home.local_agent import runtime_plan
from workers.runtime.emulation.emulated_network import BACKEND, Emulation, register
from workers.runtime.emulation.places import Places
from workers.runtime.failures import WorkerFailureError
from workers.runtime.function.parts import build_parts
from workers.runtime.iterating.iteration import IterationRunner
from workers.runtime.iterating.training_state import Progress, ShardCapture, state_bytes
from workers.runtime.runtime_plan import RuntimePlan
from workers.runtime.state.experts import ExpertStates
from workers.runtime.state.loading import ShardInMemory, load_state
from workers.runtime.synchronisation.expert_parallel import ExpertParallelSynchroniser
from workers.runtime.synchronisation.together import Synchronisation

WIDTH, HIDDEN, ITERATIONS = 6, 8, 3
#: Bytes of two matrices.
EXPERT_BYTES = 4 * 2 * WIDTH * HIDDEN
MOVES = 10
#: Packing factors, each for some iterations.
FACTORS = (1, 2, 4, 1)


class Mixture(TrainingFunction):
    """Two layers of experts that drop rows."""

    def init_model(self) -> nn.Module:
        def layer(experts: int) -> MoELayer:
            return MoELayer(WIDTH, HIDDEN, experts, TopK(2), capacity_factor=0.9, balance_weight=0.5)

        return nn.Sequential(nn.Linear(4, WIDTH), layer(4), layer(3), nn.Linear(WIDTH, 1))

    def init_dataset(self) -> TensorDataset:
        points = torch.randn(64, 5, 4, generator=torch.Generator().manual_seed(1))
        return TensorDataset(points, points.sin().sum(2, keepdim=True))

    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=0.05)

    def train(self, batch: Any, model: nn.Module) -> Any:
        points, targets = batch
        return nn.functional.mse_loss(model(points), targets)


def begin(packing: int = 1) -> IterationRunner:
    """Begin training with clipped gradients, so that their norm matters."""
    synchronisers = (
        {"kind": "expert_parallel", "choices": {"packing": packing}},
        {"kind": "dense", "choices": {"gradients_in_buckets": True}},
    )
    return runner_of(Mixture({}), batch=10, synchronisers=synchronisers, clip_norm=0.2)


def losses_of(runner: IterationRunner, begin: int) -> list[float]:
    """Return the losses of some iterations."""
    return [runner.run(begin + iteration).values["loss"] for iteration in range(ITERATIONS)]


def synchroniser_of(runner: IterationRunner) -> ExpertParallelSynchroniser:
    """Return the synchroniser that spreads the experts."""
    synchroniser = runner.synchronisation.of_kind("expert_parallel")
    assert isinstance(synchroniser, ExpertParallelSynchroniser)
    return synchroniser


def experts_here(runner: IterationRunner) -> dict[str, list[Tensor]]:
    """Return the parameters of this rank's experts, each with its optimizer state."""
    named = dict(runner.parts.module.named_parameters())
    states = runner.parts.optimizer.state
    return {
        name: [named[name].detach().clone(), *(value.clone() for value in states[named[name]].values())]
        for name in runner.parts.experts.hosts
        if runner.parts.experts.is_here(name)
    }


def stored_by(runner: IterationRunner) -> list[Any]:
    """Return the places of this rank's experts in its stored state."""
    parts = runner.parts
    state = {"model": parts.module.state_dict(), "optimizer": parts.optimizer.state_dict()}
    return list(ExpertStates(parts.experts, parts.module, parts.optimizer).apart(state)[1].tensors)


def repack() -> list[tuple[list[float], dict[str, list[Tensor]], list[Any], int, int]]:
    """Train with each packing factor in turn."""
    sent = 0
    real = dist.all_to_all_single

    def all_to_all(*arguments: Any, **keywords: Any) -> Any:
        nonlocal sent
        sent += 1
        return real(*arguments, **keywords)

    dist.all_to_all_single = all_to_all
    runner = begin()
    synchroniser = synchroniser_of(runner)
    results = []
    for place, factor in enumerate(FACTORS):
        if place:
            synchroniser.move_to(synchroniser.packed(factor))
        sent = 0
        losses = losses_of(runner, place * ITERATIONS)
        results.append((losses, experts_here(runner), stored_by(runner), state_bytes(runner.parts), sent))
    runner.synchronisation.close()
    return results


def test_repacked_experts_train_as_on_one_worker(alone: None) -> None:
    runner = begin()
    expected = [losses_of(runner, place * ITERATIONS) for place in range(len(FACTORS))]
    whole, stored = experts_here(runner), stored_by(runner)
    total = state_bytes(runner.parts)
    experts_bytes = sum(tensor.nbytes for tensors in whole.values() for tensor in tensors)
    phases = list(zip(*run_on_ranks(4, repack), strict=True))
    for factor, losses, ranks in zip(FACTORS, expected, phases, strict=True):
        hosts: dict[str, list[list[Tensor]]] = {name: [] for name in whole}
        places: list[Any] = []
        for own_losses, experts, own_places, held, all_to_alls in ranks:
            assert own_losses == pytest.approx(losses, rel=1e-4)
            own_bytes = sum(tensor.nbytes for expert in experts.values() for tensor in expert)
            assert held == total - experts_bytes + own_bytes
            assert (all_to_alls == 0) == (factor == 4)
            places += own_places
            for name, tensors in experts.items():
                hosts[name].append(tensors)
        assert sorted(places, key=repr) == sorted(stored, key=repr)
        for first, *others in hosts.values():
            assert len(others) == factor - 1
            assert all(torch.equal(*pair) for other in others for pair in zip(first, other, strict=True))


def move_over_emulated_links(box: str) -> dict[str, float]:
    """Move experts to and fro; return the bytes by class of these moves over the network."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    emulation = Emulation(
        ServerLinks.from_message(emulated()["links"]), Places((0, 1), (0, 0)), Path(box, str(rank))
    )
    register(emulation)
    store = dist.FileStore(f"{box}/emulated", ranks)
    dist.init_process_group(BACKEND, store=store, rank=rank, world_size=ranks)
    runner = begin()
    before = emulation.client.carried()[NETWORK]
    synchroniser = synchroniser_of(runner)
    for _ in range(MOVES):
        synchroniser.move_to(synchroniser.packed(2))
        synchroniser.move_to(synchroniser.packed(1))
        with runner.synchronisation.whole():
            pass
    after = emulation.client.carried()[NETWORK]
    runner.synchronisation.close()
    return {traffic: after[traffic] - before[traffic] for traffic in after}


def test_experts_on_the_move_count_as_state(tmp_path: Path) -> None:
    # The second rank has 2 and 1 experts, which move to the first when packed, and when the model runs there.
    for number, carried in enumerate(run_on_ranks(2, move_over_emulated_links, str(tmp_path))):
        assert carried[STATE] >= (0.9 * MOVES * 6 * EXPERT_BYTES if number else 0)
        assert carried[EXPERTS] == carried[GRADIENTS] == 0


def reload_alone() -> bool:
    """Let the first of two ranks load its own state in a separate group, as in a measurement; return whether
    it has all experts."""
    group = dist.new_group([0])
    if dist.get_rank():
        return False
    parts = build_parts(Mixture({}), CPU, seed=0)
    synchronisation = Synchronisation(RuntimePlan.from_message(runtime_plan()), parts, group)
    synchronisation.begin_alike()
    capture = ShardCapture(parts, generation=0, global_batch_size=8, rank=0, world_size=1)
    shard = ShardInMemory(capture.shard(Progress(), copy=True, own={}))
    state = load_state({0: shard}, [0], group, rank=0, experts=parts.expert_states)
    assert state is not None
    synchronisation.close()
    return parts.experts.hosts.keys() <= state.content["model"].keys()


def test_experts_are_loaded_by_fewer_ranks_than_there_are() -> None:
    assert run_on_ranks(2, reload_alone) == [True, False]


def wrap_only() -> int:
    """Wrap a model; return the bytes of its experts on this rank before training starts."""
    parts = build_parts(Mixture({}), CPU, seed=0)
    synchronisation = Synchronisation(RuntimePlan.from_message(runtime_plan()), parts)
    named = dict(parts.module.named_parameters())
    expert_bytes = sum(named[name].untyped_storage().nbytes() for name in parts.experts.hosts)
    # Closing the groups while the other rank still opens them would break its connections.
    dist.barrier()
    synchronisation.close()
    return expert_bytes


def test_only_the_first_rank_has_all_experts_before_the_start() -> None:
    first, second = run_on_ranks(2, wrap_only)
    assert first == 7 * EXPERT_BYTES
    # Beside the second rank's experts, a number replaces each tensor of the others.
    assert second == 3 * EXPERT_BYTES + 4 * 2 * 4


def begin_packed(packing: int) -> list[float]:
    """Return the losses of some iterations with a packing of the runtime plan."""
    return losses_of(begin(packing), 0)


def test_a_plan_packs_experts(alone: None) -> None:
    expected = losses_of(begin(), 0)
    for losses in run_on_ranks(2, begin_packed, 2):
        assert losses == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("packing", [0, 2])
def test_a_packing_that_does_not_divide_the_ranks_is_refused(alone: None, packing: int) -> None:
    with pytest.raises(WorkerFailureError, match=f"factor is {packing}; it must") as caught:
        begin(packing)
    assert caught.value.reason == "plan_refused"


def test_moves_of_other_layers_are_refused(alone: None) -> None:
    synchroniser = synchroniser_of(begin())
    placements: Mapping[str, Any] = synchroniser.packed(1)
    with pytest.raises(ValueError, match="experts of 'other' are not spread"):
        synchroniser.move_to({"other": placements["1"]})
    with pytest.raises(ValueError, match="is not for the experts of '1' on 1 ranks"):
        synchroniser.move_to({"1": placements["2"]})
