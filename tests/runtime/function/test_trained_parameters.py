"""Frozen and unfrozen parameters are synchronised; other changes of parameters are refused at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import prune

from communication.cupcake.plan import FusionPlan
from communication.plan import Prediction, content_digest
from communication.profiles.codec import Device
from communication.profiles.model import ModelProfile
from communication.profiles.placement import PlacementShape
from communication.zen.hash_family import drawn_family
from tests.communication.hooks.ranks import run_on_ranks
from tests.runtime.training_in_process import SIZE, Change, Changing, Table, Trained, begin, train
from workers.runtime.failures import WorkerFailureError

AT = 3
DENSE = {"kind": "dense", "choices": {"gradients_in_buckets": True}}
SPARSE = {"kind": "sparse", "choices": {}}


def nothing(_function: Changing, _model: Table, _iteration: int) -> None:
    return


def unfreeze(_function: Changing, model: Table, iteration: int) -> None:
    if iteration == AT:
        model.first.requires_grad_(True)


def freeze(_function: Changing, model: Table, iteration: int) -> None:
    if iteration == AT:
        model.last.weight.requires_grad_(False)


def freeze_the_table(_function: Changing, model: Table, iteration: int) -> None:
    model.table.requires_grad_(iteration < AT)


def in_turns(_function: Changing, model: Table, iteration: int) -> None:
    model.first.requires_grad_(iteration % 2 == 1)
    model.last.requires_grad_(iteration % 2 == 0)
    model.table.requires_grad_(iteration % 3 == 0)


def unfreeze_on_one(_function: Changing, model: Table, iteration: int) -> None:
    if iteration == AT and dist.get_rank() == 1:
        model.first.requires_grad_(True)


SOUND = {"unfreeze": unfreeze, "freeze": freeze, "table": freeze_the_table, "in turns": in_turns}
RANKS = 2


def fused(codec: str) -> dict[str, Any]:
    """Return the kind that sends the parameters of `Table` trained at first, except its rows, as one
    group."""
    elements = {"last.bias": 1, "last.weight": 6}
    model = ModelProfile("model", tuple(elements), np.array([*elements.values()]), np.ones(len(elements)))
    shape, prediction = PlacementShape(1, RANKS), Prediction(1.0, 0.0, 0.0)
    plan = FusionPlan(codec, Device.GPU, codec == "none", (2,), model.layout, shape, prediction, 0)
    choices = {"plan": plan.to_message(), "gradients": list(elements), "momentum": 0}
    return {"kind": "compressed", "choices": choices}


def zen(scheme: str) -> dict[str, Any]:
    """Return the kind that exchanges the rows by this scheme."""
    tensor = {"tensor": "table.weight", "elements": SIZE * 4, "width": 4, "scheme": scheme}
    content = {
        "planner": "zen",
        "servers": 1,
        "gpus_per_server": RANKS,
        "seeds": list(drawn_family("a job").seeds),
        "tensors": [{**tensor, "push_format": "coo", "pull_format": "coo"}],
    }
    return {"kind": "zen", "choices": {"plan": {**content, "digest": content_digest(content)}}}


#: Restarted at, and the synchronisers.
WAYS: dict[str, tuple[int | None, tuple[dict[str, Any], ...]]] = {
    "undisturbed": (None, (SPARSE, DENSE)),
    "restarted": (AT + 2, (SPARSE, DENSE)),
    "fused": (AT + 2, (SPARSE, fused("none"))),
    **{scheme: (AT + 2, (zen(scheme), DENSE)) for scheme in ("agsparse", "sparcml", "zen")},
}
#: The ranks have the same parameters, but not those of one worker.
LOSSY = {
    "onebit": (None, (SPARSE, fused("onebit"))),
    "ef-signsgd": (None, (SPARSE, fused("ef-signsgd"))),
}


#: Frozen and unfrozen in every way, under the plan that every job has, and in turns under the others.
CASES = [(name, way) for name in SOUND for way in ("undisturbed", "restarted")]
CASES += [("in turns", way) for way in ("fused", "agsparse", "sparcml", "zen", *LOSSY)]


def every_case() -> tuple[dict[tuple[str, str], Trained], Trained]:
    """Return the correct cases, then the one in which ranks differ."""
    results = {}
    for name, way in CASES:
        restart_at, kinds = {**WAYS, **LOSSY}[way]
        results[name, way] = train(SOUND[name], synchronisers=kinds, restart_at=restart_at, every=1)
    return results, train(unfreeze_on_one)


def _are_close(first: Trained, second: Trained) -> bool:
    return all(torch.allclose(first.weights[name], second.weights[name], atol=1e-6) for name in first.weights)


def test_freezing_and_unfreezing_trains_as_on_one_worker(alone: None) -> None:
    expected = {name: train(change) for name, change in SOUND.items()}
    still = train(nothing)
    for sound, differing in run_on_ranks(RANKS, every_case):
        for (name, way), trained in sound.items():
            assert not trained.message, (name, way)
            assert trained.gradients_left == 0
            if way in WAYS:
                assert _are_close(trained, expected[name]), (name, way)
                assert not _are_close(trained, still)
        assert differing.refused_after == AT
        assert "must freeze and unfreeze the same parameters on all workers" in differing.message


def _replace(model: Table) -> None:
    model.first = nn.Linear(4, 6)


def _add(model: Table) -> None:
    model.extra = nn.Linear(2, 2)


def _grow(model: Table) -> None:
    model.last.weight.data = torch.zeros(1, 9)
    model.forward = lambda places: model.table(places)[:, :1]  # type: ignore[method-assign]


def _tie(model: Table) -> None:
    model.first.bias = nn.Parameter(model.mask.clone(), requires_grad=False)


def _grow_buffer(model: Table) -> None:
    model.mask = torch.ones(1, 6)


def _narrow(model: Table) -> None:
    model.first.half().float().double()
    model.forward = lambda places: model.last(model.first(model.table(places).double()).float())  # type: ignore[method-assign]


#: Changes of the model at iteration AT, with the resulting messages.
REFUSED = {
    "replaced": (_replace, "the parameter 'first.weight' is another one now"),
    "added": (_add, "the parameter 'extra.weight' is new in the model"),
    "grown": (_grow, "the parameter 'last.weight' is of shape (1, 9) and torch.float32 now"),
    "tied": (_tie, "the parameter 'first.bias' is another one now"),
    "pruned": (lambda model: prune.l1_unstructured(model.first, "weight", 0.3), "'first.weight' is gone"),
    "buffer grown": (_grow_buffer, "the buffer 'mask' is of shape (1, 6) now"),
    "buffer added": (lambda model: model.register_buffer("more", torch.ones(1)), "the buffer 'more' is new"),
    "other type": (_narrow, "the parameter 'first.weight' is of shape (6, 4) and torch.float64 now"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_parameters_that_would_not_be_synchronised_are_refused(alone: None, name: str) -> None:
    def change(_function: Changing, model: Table, iteration: int) -> None:
        if iteration == AT:
            REFUSED[name][0](model)

    result = train(change)
    assert result.refused_after == AT
    assert REFUSED[name][1] in result.message
    assert "What may change while it trains" in result.message


def _add_group(function: Changing, model: Table, iteration: int) -> None:
    if iteration == AT:
        function.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})


def _drop_from_group(function: Changing, model: Table, iteration: int) -> None:
    if iteration == AT:
        del function.optimizer.param_groups[0]["params"][0]


def _another_optimizer(function: Changing, model: Table, iteration: int) -> None:
    if iteration == AT:
        function.optimizer = torch.optim.SGD(model.last.parameters(), lr=1.0)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (_add_group, "parameter groups are others now"),
        (_drop_from_group, "parameter groups are others now"),
        (_another_optimizer, "another optimizer now"),
    ],
)
def test_changing_the_optimizers_parameters_is_refused(alone: None, change: Change, complaint: str) -> None:
    result = train(change)
    assert result.refused_after == AT
    assert complaint in result.message


def test_an_optimizers_group_settings_may_change(alone: None) -> None:
    def slower(function: Changing, _model: Table, iteration: int) -> None:
        function.optimizer.param_groups[0]["lr"] = 0.1 / (1 + iteration)

    result = train(slower)
    assert not result.message


class _Outside(Changing):
    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD([*model.parameters(), nn.Parameter(torch.zeros(2))], lr=0.1)


class _Second(Changing):
    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        self.second = torch.optim.SGD(model.get_submodule("last").parameters(), lr=0.1)
        return torch.optim.SGD(model.get_submodule("table").parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("kind", "complaint"),
    [(_Outside, r"group 0 has a parameter of shape \(2,\) that the model"), (_Second, "a second optimizer")],
)
def test_parameters_in_no_state_are_refused_before_training(
    alone: None, kind: type[Changing], complaint: str
) -> None:
    with pytest.raises(WorkerFailureError, match=complaint):
        begin(kind({}, nothing))
