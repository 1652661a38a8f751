"""Return values of a function are accepted, or refused in one sentence that names what to return instead."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, IterableDataset

from punctual import TrainingFunction, current_iteration
from tests.communication.hooks.ranks import run_on_ranks
from tests.runtime.function.test_models_in_train import Points
from tests.runtime.in_process import runner_of
from workers.runtime.failures import WorkerFailureError
from workers.runtime.function.parts import build_parts
from workers.runtime.iterating.evaluation import evaluate
from workers.runtime.iterating.training_state import Progress, capture, check_portable, restore

CPU = torch.device("cpu")
INPUTS = torch.randn(64, 6, generator=torch.Generator().manual_seed(3))


class Returning(Points):
    """Returns the values that its hyperparameters name, each made from the method's arguments."""

    def init_model(self) -> nn.Module:
        return self._told("model", super().init_model())

    def init_dataset(self) -> Any:
        return self._told("dataset", super().init_dataset())

    def init_optimizer(self, model: nn.Module) -> Any:
        return self._told("optimizer", super().init_optimizer(model))

    def init_scheduler(self, optimizer: Any) -> Any:
        return self._told("scheduler", torch.optim.lr_scheduler.StepLR(optimizer, 10))

    def train(self, batch: Any, model: nn.Module) -> Any:
        return self._told("train", super().train(batch, model))

    def evaluate(self, model: nn.Module) -> Any:
        return self._told("evaluate", {"accuracy": 1})

    def state_dict(self) -> Any:
        return self._told("state", {})

    def load_state_dict(self, state: Any) -> None:
        assert state == {}

    def _told(self, method: str, usual: Any) -> Any:
        return self.hyperparameters[method](usual) if method in self.hyperparameters else usual


class Lines(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(INPUTS)


class CountedLines(Lines):
    def __len__(self) -> int:
        return 64


class WithoutItems(Dataset[Any]):
    def __len__(self) -> int:
        return 64


def _frozen(model: nn.Module) -> nn.Module:
    return model.requires_grad_(False)


def _of_another_optimizer(_: Any) -> Any:
    return torch.optim.lr_scheduler.StepLR(torch.optim.SGD([nn.Parameter(torch.zeros(1))]), 1)


def _use(function: TrainingFunction) -> None:
    """Build everything that it returns, train once, evaluate."""
    runner = runner_of(function)
    check_portable(runner.parts)
    runner.run(0)
    evaluate(function, runner.parts.module, 0)


@pytest.mark.parametrize(
    ("method", "make", "problem"),
    [
        ("model", lambda _: None, "init_model() must return an nn.Module, not None"),
        ("model", lambda _: nn.Linear, "not the class Linear"),
        ("model", lambda _: nn.LazyLinear(1), "run one batch through the model in init_model()"),
        ("model", lambda _: nn.Sequential(nn.LazyBatchNorm1d(affine=False)), "has no shape yet"),
        ("model", _frozen, "no parameter of the model has requires_grad"),
        ("model", torch.jit.script, "init_model() returned a model of TorchScript"),
        (
            "optimizer",
            lambda optimizer: (optimizer, optimizer),
            "not a tuple of 2: several optimizers are not supported",
        ),
        (
            "optimizer",
            lambda optimizer: {"a": optimizer, "b": optimizer},
            "several optimizers are not supported",
        ),
        ("optimizer", lambda _: None, "must return one torch.optim.Optimizer, not None"),
        (
            "optimizer",
            lambda optimizer: torch.optim.LBFGS(optimizer.param_groups[0]["params"]),
            "LBFGS evaluates the loss several times",
        ),
        ("scheduler", lambda scheduler: {"scheduler": scheduler}, "return the scheduler alone"),
        ("scheduler", lambda scheduler: [scheduler], "SequentialLR"),
        ("scheduler", _of_another_optimizer, "init_scheduler() returned a scheduler of another optimizer"),
        ("dataset", lambda _: Lines(), "not Lines, an IterableDataset"),
        ("dataset", lambda _: CountedLines(), "not CountedLines, an IterableDataset"),
        ("dataset", lambda _: WithoutItems(), "must return a map-style data set"),
        ("dataset", iter, "must return a map-style data set"),
        ("dataset", DataLoader, "return the data set that it loads"),
        ("train", lambda _: None, "train() must return its loss, a tensor of one number, not None"),
        ("train", lambda loss: loss.expand(3), "not a tensor of shape (3,)"),
        ("train", lambda loss: loss.detach(), "without .item() or .detach()"),
        ("train", lambda loss: loss * 1j, "train() returned a complex loss"),
        ("train", lambda loss: (loss, {"a": 10**400}), "the metric 'a' as int: a metric is one number"),
        ("train", lambda loss: (loss, [1]), "train() must return its metrics as a dict of numbers"),
        ("train", lambda loss: (loss, {"a": torch.ones(3)}), "the metric 'a' as a tensor of shape (3,)"),
        ("train", lambda loss: (loss.backward(), loss)[1], "train() must not call backward()"),
        ("state", lambda _: [1], "state_dict() must return a dict, not a list of 1"),
        ("evaluate", lambda _: 0.5, "evaluate() must return its metrics as a dict of numbers, not float"),
        ("evaluate", lambda _: {"a": "good"}, "evaluate() returned the metric 'a' as str"),
    ],
)
def test_an_unusable_return_value_is_refused_in_one_sentence(
    alone: None, method: str, make: Any, problem: str
) -> None:
    with pytest.raises(WorkerFailureError) as caught:
        _use(Returning({method: make}))
    assert caught.value.reason == "function_error"
    assert problem in caught.value.message
    assert "docs/functions.md" in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("method", "make"),
    [
        ("scheduler", lambda _: None),
        ("dataset", list),
        ("train", lambda loss: (loss, {"loss": loss, "count": True})),
        ("evaluate", lambda _: {"accuracy": torch.tensor([0.5])}),
    ],
)
def test_usable_return_values_are_accepted(alone: None, method: str, make: Any) -> None:
    _use(Returning({method: make}))


def test_gradients_made_in_init_model_are_discarded() -> None:
    def tried(model: nn.Module) -> nn.Module:
        model(INPUTS).sum().backward()
        return model

    module = build_parts(Returning({"model": tried}), CPU, 0).module
    assert all(parameter.grad is None for parameter in module.parameters())


# -- mistakes that show only beside other processes


class Rows(Dataset[Any]):
    """Data with one invalid sample."""

    def __init__(self, bad: Any) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        return self.bad() if index == 40 else (torch.ones(6), torch.ones(1))


def _wrong() -> Any:
    raise ValueError("row 40: expected 6 columns, got 5")


@pytest.mark.parametrize("processes", [0, 2])
def test_an_error_in_a_loading_process_names_its_line(alone: None, processes: int) -> None:
    function = Returning({"dataset": lambda _: Rows(_wrong), "num_workers": processes})
    runner = runner_of(function, batch=64)
    with pytest.raises(WorkerFailureError) as caught:
        runner.run(0)
    assert caught.value.message.startswith(
        "the data set: ValueError: row 40: expected 6 columns, got 5 (test_returned.py, line "
    )
    assert "return self.bad()" in caught.value.traceback_text


def test_an_unpicklable_batch_is_reported(alone: None) -> None:
    function = Returning({"num_workers": 1})
    function.collate = lambda samples: lambda: samples  # type: ignore[method-assign]
    with pytest.raises(WorkerFailureError, match="a batch cannot be sent by the process that loaded it"):
        runner_of(function).run(0)


class PartOfTheBatch(Points):
    """Keeps a tensor of the whole batch's size, as recurrent networks do."""

    def train(self, batch: Any, model: nn.Module) -> Any:
        return super().train(batch, model) + torch.ones(8) @ batch[1]


class SomeMetrics(Points):
    """Returns a metric for some batches only."""

    def train(self, batch: Any, model: nn.Module) -> Any:
        metrics = {"of the first": 1.0} if dist.get_rank() == 0 else {}
        return super().train(batch, model), metrics


class OtherModels(Points):
    """Builds a different model on each worker."""

    def init_model(self) -> nn.Module:
        return nn.Linear(6, 1, bias=dist.get_rank() == 0)


def messages() -> list[str]:
    """Return the messages with which three functions fail on this rank."""
    failures = []
    for kind in (PartOfTheBatch, SomeMetrics, OtherModels):
        try:
            runner_of(kind({})).run(0)
        except WorkerFailureError as failure:
            failures.append(failure.message)
    return failures


def test_errors_that_need_several_workers_are_found_on_one() -> None:
    for rank, rank_messages in enumerate(run_on_ranks(2, messages)):
        part, metrics, models = rank_messages
        assert part.endswith("; a worker has 4 of the batch's 8 samples")
        assert f"the metrics {['of the first'] if rank == 0 else []} for this worker's part" in metrics
        assert models.startswith("init_model() built ")
        assert "DDP" not in models


class Undetached(Points):
    """Keeps an undetached tensor of each batch for the next."""

    def train(self, batch: Any, model: nn.Module) -> Any:
        loss = super().train(batch, model)
        previous, self.kept = getattr(self, "kept", 0.0), loss
        return loss + previous


class InPiecesLater(Points):
    """Recomputes with a backward pass within the backward pass, but not in the first iteration."""

    def train(self, batch: Any, model: Any) -> Any:
        inputs, targets = batch
        hidden = model[0](inputs)
        for _ in range(2 * (current_iteration() > 0)):
            hidden = checkpoint(lambda x: x + model[0](inputs), hidden, use_reentrant=True)
        return (model[2](hidden.tanh()) - targets).square().mean()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Undetached, "what it keeps of an earlier batch needs .detach()"),
        (InPiecesLater, "use_reentrant=False"),
    ],
)
def test_errors_of_later_iterations_are_explained(alone: None, kind: type[Points], words: str) -> None:
    runner = runner_of(kind({}))
    runner.run(0)
    with pytest.raises(WorkerFailureError) as caught:
        runner.run(1)
    assert caught.value.message.startswith("the backward pass: ")
    assert words in caught.value.message


class CarriedState(Points):
    """Continues from its result of the last batch, as recurrent networks do."""

    def train(self, batch: Any, model: nn.Module) -> Any:
        outputs = model(batch[0])
        loss = (outputs + getattr(self, "hidden", 0.0) - batch[1]).square().mean()
        self.hidden = outputs.detach()
        return loss


def test_functions_tied_to_the_whole_batch_are_found_on_one_worker(alone: None) -> None:
    runner = runner_of(CarriedState({}))
    runner.rehearse(0)
    with pytest.raises(WorkerFailureError, match="a worker has 4 of the batch's 8 samples"):
        runner.rehearse(0, workers=2)


class OtherState(Points):
    """Cannot load its own state."""

    def load_state_dict(self, state: Any) -> None:
        nn.Linear(6, 1).load_state_dict(dict(state))


def test_a_state_that_cannot_be_restored_is_explained() -> None:
    parts = build_parts(OtherState({}), CPU, 0)
    state = capture(parts, Progress(), generation=0, global_batch_size=8)
    with pytest.raises(WorkerFailureError) as caught:
        restore(parts, state, global_batch_size=8)
    assert (
        'RuntimeError: Error(s) in loading state_dict for Linear: Missing key(s) in state_dict: "weight"'
        in (caught.value.message)
    )
    assert "(test_returned.py, line " in caught.value.message


def gathering() -> list[Any]:
    """Return a gathering metric's result when one rank evaluates alone."""

    def gathered(_: Any) -> dict[str, float]:
        if not dist.is_initialized():
            return {"held_out": 1.0}
        parts = [torch.zeros(1) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, torch.ones(1))
        return {"held_out": 2.0}

    runner = runner_of(Returning({"evaluate": gathered}))
    runner.run(0)
    alone = evaluate(runner.parts.function, runner.parts.module, 0) if dist.get_rank() == 0 else {}
    runner.run(1)
    return [alone, dist.is_initialized()]


def test_a_metric_that_gathers_sees_one_worker_in_evaluate() -> None:
    assert run_on_ranks(2, gathering) == [[{"held_out": 1.0}, True], [{}, True]]
