"""The model as `train()` sees it on many ranks."""

from __future__ import annotations

from typing import Any

from torch.nn.parallel import DistributedDataParallel


class DistributedModel(DistributedDataParallel):
    """DDP that lets `train()` read the model's own attributes and notices when it was bypassed."""

    forward_calls = 0

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        """Call the model, counting calls: gradients of a bypassed model would not be synchronised."""
        self.forward_calls += 1
        return super().forward(*inputs, **keywords)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":
                raise
            return getattr(super().__getattr__("module"), name)
