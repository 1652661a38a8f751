"""A small language model with one expert for each token, with two, or with an adaptive gate.

    python -m benchmarks.experts.adaptive_gating [--only schemes,languages,runtime]
        [--schemes "top-2,T = 0.1"] [--seeds 0,1,2] [--steps 200] [--json OUT]

Trains `examples/moe_language_model.py`, an easy and a hard language, on one processor:

* `schemes`: dense, top-1, top-2 and adaptive gating by threshold. All schemes of a seed take turns of 25
  steps. Time is CPU time of the one thread; the time to a loss is steps times the time of a step.
* `languages`: two-expert tokens of each language and layer at a threshold of 0.1, with and without the
  balance loss, and how they correlate with the words' losses.
* `runtime`: CPU time of an iteration in the training runtime at one worker, against a plain loop.

Losses are those of held-out passages. 10 minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from examples.moe_language_model import LENGTH, MoELanguageModel, Passages
from moe.gating.flops import LayerSizes, flops_per_token, measured_flops
from punctual.moe import Adaptive, Routing, moe_layers, routing_counts
from workers.runtime.at_home.local_agent import runtime_plan
from workers.runtime.data.batches import BatchLoader
from workers.runtime.data.sample_order import SampleOrder
from workers.runtime.function.parts import build_parts
from workers.runtime.iterating.iteration import IterationRunner
from workers.runtime.runtime_plan import RuntimePlan
from workers.runtime.synchronisation.together import Synchronisation

WIDTH, HIDDEN, LAYERS, EXPERTS, BATCH, TURN = 128, 512, 2, 8, 32, 25
THRESHOLDS = (0.0, 0.05, 0.1, 0.2, 0.4, 1.0)
SCHEMES: dict[str, dict[str, Any]] = {
    "dense": {"gate": "dense"},
    "top-1": {"gate": "top1"},
    "top-2": {"gate": "top2"},
    **{f"T = {each:g}": {"gate": "adaptive", "threshold": each} for each in THRESHOLDS},
}
#: Losses within this factor of top-2's last one count as equal.
EQUAL = 1.01
RUNTIME_TURNS, RUNTIME_STEPS = 25, 4


@dataclass
class Training:
    """The example in a plain loop."""

    hyperparameters: dict[str, Any]
    seed: int
    steps: int = 0
    seconds: float = 0.0
    #: By layer.
    tokens: list[int] = field(default_factory=lambda: [0] * LAYERS)
    two_expert_tokens: list[int] = field(default_factory=lambda: [0] * LAYERS)
    #: [steps, held-out loss].
    curve: list[tuple[int, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.function = MoELanguageModel(self.hyperparameters)
        torch.manual_seed(self.seed)
        self.model = self.function.init_model()
        dataset = self.function.init_dataset()
        assert isinstance(dataset, Passages)
        self.words = dataset.words
        self.optimizer = self.function.init_optimizer(self.model)
        self.scheduler = self.function.init_scheduler(self.optimizer)
        self._generator = torch.Generator().manual_seed(self.seed)
        self._order = torch.empty(0)

    def step(self, *, collates: bool = False) -> None:
        """Train on the next batch; `collates`: build it from samples, as a loader does."""
        began = time.process_time()
        self.model.train()
        place = self.steps * BATCH % len(self.words)
        if place == 0:
            self._order = torch.randperm(len(self.words), generator=self._generator)
        chosen = self._order[place : place + BATCH]
        batch = self.function.collate(list(self.words[chosen])) if collates else self.words[chosen]
        loss, _ = self.function.train(batch, self.model)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.scheduler.step()
        self.seconds += time.process_time() - began
        self.steps += 1

    def look(self) -> None:
        """Record counts and the held-out loss."""
        for layer, counts in enumerate(routing_counts(self.model).values()):
            self.tokens[layer] += counts.tokens
            self.two_expert_tokens[layer] += counts.multi_expert_tokens
        self.curve.append((self.steps, self.word_losses().mean().item()))

    def word_losses(self) -> Tensor:
        """Compute the loss of each held-out word, as (passages, words)."""
        self.model.eval()
        words = self.function.held_out.words
        with torch.no_grad():
            scores = self.model(words[:, :-1])
        routing_counts(self.model)
        losses = functional.cross_entropy(scores.flatten(0, 1), words[:, 1:].flatten(), reduction="none")
        return losses.view(len(words), -1)

    def flops(self) -> float:
        """Return the counted FLOPs of a token in a layer."""
        if not any(self.tokens):
            return flops_per_token(LayerSizes(WIDTH, HIDDEN, LENGTH, 0), 1)
        sizes = LayerSizes(WIDTH, HIDDEN, LENGTH, EXPERTS)
        return measured_flops(sizes, self.tokens, self.two_expert_tokens) / sum(self.tokens)


def steps_to(curve: Sequence[tuple[int, float]], target: float) -> float | None:
    """Return the steps after which a loss was reached, interpolated; None if it never was."""
    for (step, loss), (next_step, next_loss) in pairwise(curve):
        if next_loss <= target:
            return step + (next_step - step) * (loss - target) / (loss - next_loss)
    return None


def compare_schemes(schemes: Sequence[str], seed: int, steps: int) -> dict[str, dict[str, Any]]:
    """Train schemes in turns, top-2 among them; return ratios to top-2."""
    trainings = {scheme: Training(SCHEMES[scheme], seed) for scheme in schemes}
    for training in trainings.values():
        training.look()
    for _ in range(steps // TURN):
        for training in trainings.values():
            for _ in range(TURN):
                training.step()
            training.look()
    top2 = trainings["top-2"]
    target = EQUAL * top2.curve[-1][1]
    top2_steps = steps_to(top2.curve, target)
    assert top2_steps is not None
    found = {}
    for scheme, training in trainings.items():
        reached = steps_to(training.curve, target)
        step_time = training.seconds / top2.seconds
        found[scheme] = {
            "two_expert_share": sum(training.two_expert_tokens) / max(sum(training.tokens), 1),
            "flops": training.flops() / top2.flops(),
            "loss": training.curve[-1][1] / top2.curve[-1][1],
            "step_time": step_time,
            "steps": None if reached is None else reached / top2_steps,
            "time": None if reached is None else reached / top2_steps * step_time,
        }
    print(f"seed {seed}: top-2's loss {top2.curve[-1][1]:.4f} after {steps} steps", flush=True)
    return found


def show_schemes(by_seed: dict[int, dict[str, dict[str, Any]]]) -> None:
    """Print the means over seeds, and each seed's time to top-2's loss."""
    print("ratios to top-2: two-expert share, FLOPs, loss, time of a step, steps and time to equal loss")
    for scheme in next(iter(by_seed.values())):
        runs = [found[scheme] for found in by_seed.values()]
        columns = [f"{mean(run[name] for run in runs):.3f}" for name in list(runs[0])[:4]]
        for name in ("steps", "time"):
            values = [run[name] for run in runs]
            seeds = " ".join("-" if value is None else f"{value:.2f}" for value in values)
            columns.append(f"{'-' if None in values else f'{mean(values):.3f}'} ({seeds})")
        print(f"{scheme:10}", "  ".join(columns), flush=True)


@dataclass(frozen=True)
class Watched(Adaptive):
    """An adaptive gate that records which tokens got two experts."""

    seen: list[Tensor] = field(default_factory=list)

    def route(self, probabilities: Tensor) -> Routing:
        """Route as `Adaptive`."""
        routing = super().route(probabilities)
        self.seen.append(routing.uses_several)
        return routing


def compare_languages(seed: int, steps: int, balance_weight: float) -> list[dict[str, float]]:
    """Train with a threshold of 0.1; return each layer's two-expert shares of held-out words."""
    training = Training(SCHEMES["T = 0.1"], seed)
    gates = []
    for layer in moe_layers(training.model).values():
        layer.balance_weight = balance_weight
        gates.append(Watched(0.1))
        layer.evaluation_gate = gates[-1]
    for _ in range(steps):
        training.step()
    losses = training.word_losses()
    is_hard = training.function.held_out.is_hard
    found = []
    for gate in gates:
        has_two = gate.seen[-1].view(losses.shape).float()
        correlation = torch.corrcoef(torch.stack([has_two.flatten(), losses.flatten()]))[0, 1].item()
        shares = {"easy": has_two[~is_hard].mean().item(), "hard": has_two[is_hard].mean().item()}
        found.append({**shares, "correlation_with_loss": correlation})
    print(
        f"seed {seed}, balance weight {balance_weight:g}: loss easy {losses[~is_hard].mean():.3f}, hard "
        f"{losses[is_hard].mean():.3f}; two experts (easy, hard, correlation with the loss) by layer:",
        ", ".join(" ".join(f"{value:.2f}" for value in layer.values()) for layer in found),
        flush=True,
    )
    return found


def compare_runtime() -> float:
    """Return the plain loop's CPU time of a step over the runtime's at one worker, median of turns."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    plain = Training(SCHEMES["T = 0.1"], 0)
    cpu = torch.device("cpu")
    function = MoELanguageModel({**SCHEMES["T = 0.1"], "global_batch_size": BATCH})
    parts = build_parts(function, cpu, 0)
    dataset = function.init_dataset()
    synchronisation = Synchronisation(RuntimePlan.from_message(runtime_plan()), parts)
    loader = BatchLoader(
        dataset, function.collate, SampleOrder(len(plain.words), BATCH, 0), rank=0, world_size=1, device=cpu
    )
    runner = IterationRunner(
        parts, synchronisation, loader,
        group=None, world_size=1, rank=0, seed=0, clip_norm=None, pace=None,
    )  # fmt: skip
    ratios = []
    for turn in range(RUNTIME_TURNS):
        began = time.process_time()
        for iteration in range(turn * RUNTIME_STEPS, (turn + 1) * RUNTIME_STEPS):
            runner.run(iteration)
        runtime_seconds = time.process_time() - began
        before = plain.seconds
        for _ in range(RUNTIME_STEPS):
            plain.step(collates=True)
        ratios.append((plain.seconds - before) / runtime_seconds)
    synchronisation.close()
    dist.destroy_process_group()
    # The first turn includes setup.
    found = median(ratios[1:])
    print(f"throughput of the runtime over a plain loop's: {found:.3f} ({min(ratios[1:]):.3f} at worst)")
    return found


def main() -> None:
    """Run the selected parts and print their results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="schemes,languages,runtime")
    parser.add_argument("--schemes", default=",".join(SCHEMES), help="of " + ", ".join(SCHEMES))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    parts, seeds = options.only.split(","), [int(seed) for seed in options.seeds.split(",")]
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    if "runtime" in parts:
        found["runtime"] = compare_runtime()
    if "schemes" in parts:
        found["schemes"] = {
            seed: compare_schemes(options.schemes.split(","), seed, options.steps) for seed in seeds
        }
        show_schemes(found["schemes"])
    if "languages" in parts:
        found["languages"] = [
            {"seed": seed, "balance_weight": weight, "layers": compare_languages(seed, options.steps, weight)}
            for weight in (0.01, 0.0)
            for seed in seeds
        ]
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
