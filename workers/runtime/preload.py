"""Imports that all workers share: an agent's nursery imports this module once and forks workers from there.

It imports only packages installed beside the agent. A worker imports this runtime itself in its sandbox.
These imports must start no thread and touch no GPU, or forking would be unsafe (the nursery checks both).
"""

import contextlib
import encodings.idna  # noqa: F401
import multiprocessing  # noqa: F401

import numpy.random  # noqa: F401
import torch

# Half of the import time: DistributedDataParallel and the optimizers import it at first use.
import torch._dynamo
import torch.distributed
import torch.nn.parallel.distributed
import torch.optim.lr_scheduler
import torch.utils.data
import torch.utils.serialization.config

# Only some releases of torch have it; their profiler imports it at first use.
with contextlib.suppress(ImportError):
    import torch.profiler._cupti_monitor  # noqa: F401
