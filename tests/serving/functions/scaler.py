"""Multiplies numbers by a weight. Some inputs misbehave on purpose."""

import os
import time

import torch

from punctual import TrainingFunction, as_tensor


class Scaler(TrainingFunction):
    """Learns one factor."""

    def init_model(self):
        model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.constant_(model.weight, 1.0)
        return model

    def init_dataset(self):
        x = torch.linspace(-1, 1, 64).unsqueeze(1)
        return torch.utils.data.TensorDataset(x, 3 * x)

    def init_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def train(self, batch, model):
        x, y = batch
        return torch.nn.functional.mse_loss(model(x), y)

    def predict(self, batch, model):
        assert not torch.is_grad_enabled()
        if 13 in batch:
            raise RuntimeError("thirteen is a defect")
        if "end" in batch:
            os._exit(7)
        while "sleep" in batch:
            time.sleep(0.05)
        return model(as_tensor(batch).unsqueeze(1)).squeeze(1)


class Trainer(Scaler):
    """Cannot be deployed."""

    predict = TrainingFunction.predict
