"""The model as `train()` sees it on many ranks."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.distributed.utils import _sync_module_states, _verify_param_shape_across_processes
from torch.nn.parallel import DistributedDataParallel


class DistributedModel(DistributedDataParallel):
    """DDP that lets `train()` read the model's own attributes and notices when it was bypassed."""

    forward_calls = 0

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        """Call the model, counting calls: gradients of a bypassed model would not be synchronised."""
        self.forward_calls += 1
        return super().forward(*inputs, **keywords)

    def begin_alike(self) -> None:
        """What DDP does when it is made, unless it is told not to: every rank gets the first one's values."""
        trained = [
            parameter
            for name, parameter in self.module.named_parameters()
            if parameter.requires_grad and name not in self.parameters_to_ignore
        ]
        group: dist.ProcessGroup = self.process_group
        if trained:
            _verify_param_shape_across_processes(group, trained)
        _sync_module_states(
            module=self.module,
            process_group=group,
            broadcast_bucket_size=self.broadcast_bucket_size,
            src=0,
            params_and_buffers_to_ignore=self.parameters_to_ignore,
        )

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":
                raise
            return getattr(super().__getattr__("module"), name)
