"""A linear model whose `predict` takes as long as on an accelerator of its own: 10 ms and 20 ms an input."""

import time

import torch

from punctual import TrainingFunction, as_tensor


class PacedModel(TrainingFunction):
    """Learns one factor. `predict` leaves the processor free."""

    def init_model(self):
        return torch.nn.Linear(1, 1, bias=False)

    def init_dataset(self):
        x = torch.linspace(-1, 1, 64).unsqueeze(1)
        return torch.utils.data.TensorDataset(x, 3 * x)

    def init_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def train(self, batch, model):
        x, y = batch
        return torch.nn.functional.mse_loss(model(x), y)

    def predict(self, batch, model):
        time.sleep(0.01 + 0.02 * len(batch))
        return model(as_tensor(batch).unsqueeze(1)).squeeze(1)
