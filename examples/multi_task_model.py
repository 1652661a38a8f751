"""Learn four tasks of unequal load at once: a transformer with a mixture of experts, a head for each task.

All tasks read the same kind of digits, and answer at every place: the largest digit so far, the sum so far by
its last digit, the digit two places before, and whether so far there were more large digits than small ones.
Of eight samples four are of the first task, two of the second, and one of each of the others. Workers get
tasks by these loads: of eight workers four compute the first task, two the second.

Hyperparameters (defaults in brackets): `global_batch_size`, `learning_rate` [0.003], `width` [48], `hidden`
[96], `heads` [4], `experts` [8], `samples` [8192].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import ConcatDataset, Dataset

from punctual import Task, TrainingFunction
from punctual.moe import MoELayer, TopK

LENGTH, DIGITS = 12, 10
HELD_OUT = 128
#: Samples of eight.
LOADS = {"largest": 4, "sum": 2, "before": 1, "majority": 1}
TASKS = tuple(LOADS)


def answer(task: str, digits: Tensor) -> Tensor:
    """Return what is right at every place.

    Args:
        digits: (samples, LENGTH).
    """
    if task == "largest":
        return digits.cummax(dim=1).values
    if task == "sum":
        return digits.cumsum(dim=1) % DIGITS
    if task == "before":
        return functional.pad(digits, (2, 0))[:, :LENGTH]
    return (torch.where(digits >= DIGITS // 2, 1, -1).cumsum(dim=1) > 0).long()


class Samples(Dataset[tuple[int, Tensor, Tensor]]):
    """Digits and answers of one task, drawn by seed."""

    def __init__(self, task: str, count: int, seed: int) -> None:
        self.number = TASKS.index(task)
        generator = torch.Generator().manual_seed(10 * seed + self.number)
        self.digits = torch.randint(DIGITS, (count, LENGTH), generator=generator)
        self.answers = answer(task, self.digits)

    def __len__(self) -> int:
        return len(self.digits)

    def __getitem__(self, index: int) -> tuple[int, Tensor, Tensor]:
        return self.number, self.digits[index], self.answers[index]


class MultiTaskModel(nn.Module):
    """What all tasks share (words, attention, experts), and a head for each."""

    def __init__(self, width: int, hidden: int, heads: int, experts: int) -> None:
        super().__init__()
        self.digits = nn.Embedding(DIGITS, width)
        self.places = nn.Embedding(LENGTH, width)
        self.tasks = nn.Embedding(len(TASKS), width)
        self.before_attention = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.before_experts = nn.LayerNorm(width)
        self.experts = MoELayer(width, hidden, experts, TopK(2))
        self.before_heads = nn.LayerNorm(width)
        self.heads = nn.ModuleList(nn.Linear(width, DIGITS) for _ in TASKS)
        self.register_buffer("later", torch.ones(LENGTH, LENGTH).triu(1).bool(), persistent=False)

    def forward(self, tasks: Tensor, digits: Tensor) -> Tensor:
        """Return scores of every answer at every place, (samples, LENGTH, DIGITS).

        A worker has samples of few tasks, and computes the heads of these alone.
        """
        places = torch.arange(LENGTH, device=digits.device)
        x = self.digits(digits) + self.places(places) + self.tasks(tasks).unsqueeze(1)
        seen = self.before_attention(x)
        x = x + self.attention(seen, seen, seen, attn_mask=self.later, need_weights=False)[0]
        x = x + self.experts(self.before_experts(x))
        x = self.before_heads(x)
        scores = x.new_zeros(*digits.shape, DIGITS)
        for task in tasks.unique().tolist():
            own = tasks == task
            scores[own] = self.heads[task](x[own])
        return scores


class MultiTask(TrainingFunction):
    """Learns four tasks of unequal load at once."""

    speed_neutral = {"learning_rate"}

    def tasks(self) -> Mapping[str, Task]:
        return {name: Task(share=load) for name, load in LOADS.items()}

    def init_model(self) -> nn.Module:
        given = self.hyperparameters
        return MultiTaskModel(
            width=int(given.get("width", 48)),
            hidden=int(given.get("hidden", 96)),
            heads=int(given.get("heads", 4)),
            experts=int(given.get("experts", 8)),
        )

    def init_dataset(self) -> Dataset[Any]:
        samples = int(self.hyperparameters.get("samples", 8192))
        whole = sum(LOADS.values())
        self.held_out = {task: Samples(task, HELD_OUT, seed=1) for task in TASKS}
        return ConcatDataset(Samples(task, samples * load // whole, seed=0) for task, load in LOADS.items())

    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        learning_rate = float(self.hyperparameters.get("learning_rate", 0.003))
        return torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.01)

    def init_scheduler(self, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 30))

    def train(self, batch: Any, model: nn.Module) -> tuple[Tensor, dict[str, Tensor]]:
        tasks, digits, right = batch
        scores = model(tasks, digits)
        loss = functional.cross_entropy(scores.flatten(0, 1), right.flatten())
        return loss, {"accuracy": (scores.argmax(dim=2) == right).float().mean()}

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        device = next(model.parameters()).device
        found = {}
        for name, held_out in self.held_out.items():
            tasks = torch.full((len(held_out),), held_out.number, device=device)
            guessed = model(tasks, held_out.digits.to(device)).argmax(dim=2)
            found[f"accuracy_{name}"] = (guessed == held_out.answers.to(device)).float().mean().item()
        return {"validation_accuracy": sum(found.values()) / len(found), **found}
