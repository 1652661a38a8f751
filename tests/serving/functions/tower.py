"""A model of ten equal layers."""

import torch

from punctual import TrainingFunction, as_tensor

WIDTH = 8


class Tower(TrainingFunction):
    """Transforms rows."""

    def init_model(self):
        torch.manual_seed(5)
        return torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(10)))

    def init_dataset(self):
        return torch.utils.data.TensorDataset(torch.zeros(4, WIDTH))

    def init_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def train(self, batch, model):
        return model(batch[0]).mean()

    def predict(self, batch, model):
        return model(as_tensor(batch, (WIDTH,)))
