"""The recurrent network of Lyra (section 3.6). The only file of this folder that needs PyTorch.

Published: long short-term memory, ten samples, two hidden layers, Adam, mean squared error. The spec sets
width, learning rate, batch, epochs and early stop; the scaling of samples is ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from lending.forecasting.errors import ForecasterError
from lending.forecasting.forecaster import (
    FitReport,
    FloatArray,
    Forecaster,
    Progress,
    mean_squared_error,
    training_windows,
)
from lending.forecasting.sampling import SAMPLES_PER_DAY
from lending.forecasting.storage import pack, unpack

HIDDEN_LAYERS, WIDTH = 2, 32

_SCALE = "scale"


@dataclass(frozen=True, slots=True)
class Training:
    """Hyperparameters of the network's training.

    Training stops after ``patience`` epochs without a lower validation error; the best weights are kept.
    """

    learning_rate: float = 1e-3
    batch: int = 64
    epochs: int = 50
    patience: int = 10


class UsageNetwork(nn.Module):
    """Maps windows of scaled samples, shape (n, window), to the next scaled sample, shape (n,).

    The output is added to the window's mean: the layers learn the change of usage, not its level.
    """

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(input_size=1, hidden_size=width, num_layers=HIDDEN_LAYERS, batch_first=True)
        self.output = nn.Linear(width, 1)

    def forward(self, windows: Tensor) -> Tensor:
        """Return the prediction after the last sample of each window."""
        states, _ = self.recurrent(windows.unsqueeze(-1))
        return windows.mean(dim=1) + self.output(states[:, -1]).squeeze(-1)


class LongShortTermMemory(Forecaster):
    """Seeded and single-threaded: on one machine, the same samples give the same weights."""

    name = "lstm"
    # Fitted to one or two days, its forecasts are worse than persistence.
    least_samples: ClassVar[int] = 3 * SAMPLES_PER_DAY

    def __init__(self, seed: int = 0, training: Training | None = None) -> None:
        self._seed = seed
        self._training = training if training is not None else Training()
        self._network: UsageNetwork | None = None
        # Mean and standard deviation of the training samples; the network's input is scaled by them.
        self._mean, self._deviation = 0.0, 1.0

    @property
    def fitted(self) -> bool:
        """Whether there is a network."""
        return self._network is not None

    def fit(self, samples: ArrayLike, progress: Progress | None = None) -> FitReport:
        """Train a new network. Raises TooFewSamples, and whatever ``progress`` raises."""
        windows, following, learned = training_windows(self, samples)
        mean, deviation = float(windows[:learned].mean()), float(windows[:learned].std()) or 1.0
        with _one_thread():
            network, epochs = self._train(
                _tensor((windows - mean) / deviation),
                _tensor((following - mean) / deviation),
                learned,
                progress,
            )
        self._network, self._mean, self._deviation = network, mean, deviation
        return FitReport(
            windows=learned,
            epochs=epochs,
            error=mean_squared_error(self._predict(windows[learned:]), following[learned:]),
            persistence_error=mean_squared_error(windows[learned:, -1], following[learned:]),
        )

    def _train(
        self, windows: Tensor, following: Tensor, learned: int, progress: Progress | None
    ) -> tuple[UsageNetwork, int]:
        settings = self._training
        network = _new_network(self._seed)
        order = torch.Generator().manual_seed(self._seed)
        optimizer = torch.optim.Adam(network.parameters(), lr=settings.learning_rate)
        lowest, best, best_epoch, epoch = float("inf"), deepcopy(network.state_dict()), 0, 0
        while epoch < settings.epochs and epoch - best_epoch < settings.patience:
            if progress is not None:
                progress(epoch, settings.epochs)
            for rows in torch.randperm(learned, generator=order).split(settings.batch):
                optimizer.zero_grad()
                nn.functional.mse_loss(network(windows[rows]), following[rows]).backward()
                optimizer.step()
            epoch += 1
            with torch.inference_mode():
                error = float(nn.functional.mse_loss(network(windows[learned:]), following[learned:]))
            if error < lowest:
                lowest, best, best_epoch = error, deepcopy(network.state_dict()), epoch
        network.load_state_dict(best)
        return network, epoch

    def to_bytes(self) -> bytes:
        """Return weights and scale. Raises ForecasterError when there are none."""
        if self._network is None:
            raise ForecasterError(f"{self.name} has learned nothing that could be stored")
        weights = {key: tensor.numpy() for key, tensor in self._network.state_dict().items()}
        return pack(self.name, {**weights, _SCALE: np.array([self._mean, self._deviation])})

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return the stored network. Raises ForecasterError when ``data`` does not hold its weights."""
        arrays = unpack(cls.name, data)
        scale = arrays.pop(_SCALE, np.zeros(0))
        network = _new_network(0)
        expected = {key: tuple(tensor.shape) for key, tensor in network.state_dict().items()}
        if scale.shape != (2,) or {key: array.shape for key, array in arrays.items()} != expected:
            raise ForecasterError(f"these are no weights of {cls.name}: {sorted(arrays)}")
        network.load_state_dict({key: torch.from_numpy(array) for key, array in arrays.items()})
        forecaster = cls()
        forecaster._network = network
        forecaster._mean, forecaster._deviation = scale.tolist()
        return forecaster

    def _predict(self, windows: FloatArray) -> FloatArray:
        assert self._network is not None  # called only when fitted
        with _one_thread(), torch.inference_mode():
            scaled: FloatArray = (
                self._network(_tensor((windows - self._mean) / self._deviation)).numpy().astype(np.float64)
            )
        return scaled * self._deviation + self._mean


def _new_network(seed: int) -> UsageNetwork:
    # Leave the program's random state unchanged.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return UsageNetwork()


def _tensor(values: FloatArray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))


@contextmanager
def _one_thread() -> Iterator[None]:
    """Use one thread for this small network, then restore the process's thread count."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
