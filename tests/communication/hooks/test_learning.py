"""The effect of codecs with error feedback on learning, by optimizer, in one process instead of two ranks.

This decides which codecs are used by default (`communication.library.codecs.FAITHFUL`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from statistics import fmean

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from communication.hooks.codecs.names import codec_named
from communication.hooks.feedback import ErrorFeedback
from communication.hooks.residuals import Row
from communication.library.codec_names import FAITHFUL, LOSSY
from punctual import TrainingFunction

EXAMPLE = Path(__file__).parents[3] / "examples" / "image_classifier.py"
ITERATIONS, RANKS, SAMPLES = 150, 2, 32
#: Loss relative to training without a codec, at equal steps.
TOLERANCE = 1.03
OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "SGD": lambda model: torch.optim.SGD(model.parameters(), lr=0.05),
    "AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
}


def example() -> TrainingFunction:
    spec = spec_from_file_location("image_classifier", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(1)
    return module.ImageClassifier({"channels": 6})


class Rank:
    """Computes its share of a batch, and sends its gradients as one group."""

    def __init__(self, codec: str, model: nn.Module) -> None:
        self.feedback = ErrorFeedback(codec_named(codec))
        self.model = model

    def sent(self, loss: Tensor, iteration: int) -> Tensor:
        """Return what arrives of its part of the mean gradient."""
        self.model.zero_grad()
        loss.backward()
        parts = [
            parameter.grad.flatten() for parameter in self.model.parameters() if parameter.grad is not None
        ]
        values = torch.cat(parts) / RANKS
        whole = range(len(values))
        payload = self.feedback.encode(Row(0, 0, 0, len(values)), values, [whole], iteration)
        arrived = torch.zeros(len(whole))
        self.feedback.codec.decode(payload, arrived)
        return arrived


def last_loss(codec: str, optimizer: str) -> float:
    """Return the mean loss of the last sixth of the iterations."""
    function = example()
    model, data = function.init_model(), function.init_dataset()
    ranks, steps = [Rank(codec, model) for _ in range(RANKS)], OPTIMIZERS[optimizer](model)
    chance, losses = torch.Generator().manual_seed(7), []
    for iteration in range(ITERATIONS):
        gradient = torch.zeros(sum(parameter.numel() for parameter in model.parameters()))
        for rank in ranks:
            drawn = torch.randint(4096, (SAMPLES,), generator=chance).tolist()
            torch.manual_seed(iteration)
            loss, _ = function.train(default_collate([data[index] for index in drawn]), model)
            losses.append(loss.item())
            gradient += rank.sent(loss, iteration)
        parameters = list(model.parameters())
        for weight, part in zip(
            parameters, gradient.split([parameter.numel() for parameter in parameters]), strict=True
        ):
            weight.grad = part.view_as(weight).clone()
        steps.step()
    return fmean(losses[-RANKS * ITERATIONS // 6 :])


@pytest.fixture(scope="module")
def ratios() -> Iterator[dict[tuple[str, str], float]]:
    """Return by codec and optimizer the loss relative to that without a codec."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    without = {name: last_loss("none", name) for name in OPTIMIZERS}
    yield {(codec, name): last_loss(codec, name) / without[name] for codec in LOSSY for name in OPTIMIZERS}
    torch.set_num_threads(threads)


@pytest.mark.slow
def test_error_feedback_recovers_the_loss_under_sgd(
    ratios: dict[tuple[str, str], float],
) -> None:
    """Except for random-k: it drops 99 of 100 values, and the learning rate suits dense gradients."""
    assert {codec for codec in LOSSY if ratios[codec, "SGD"] <= TOLERANCE} == {*LOSSY} - {"random-k"}, ratios


@pytest.mark.slow
def test_default_codecs_keep_the_loss_under_every_optimizer(
    ratios: dict[tuple[str, str], float],
) -> None:
    """All default codecs, and no others."""
    held = {codec for codec in LOSSY if all(ratios[codec, name] <= TOLERANCE for name in OPTIMIZERS)}
    assert held == {*FAITHFUL}, ratios
