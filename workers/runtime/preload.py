"""What every worker imports and nothing of a job: an agent's nursery imports it once and forks workers from
there.

Only packages that are installed beside the agent, none of this runtime: a worker imports that in its sandbox.
Importing these must start no thread and touch no GPU, else nothing could be forked afterwards (the nursery
checks both).
"""

import contextlib
import encodings.idna  # noqa: F401
import multiprocessing  # noqa: F401

import numpy.random  # noqa: F401
import torch

# Half of the time: DistributedDataParallel and the optimizers import it at their first use.
import torch._dynamo
import torch.distributed
import torch.nn.parallel.distributed
import torch.optim.lr_scheduler
import torch.utils.data
import torch.utils.serialization.config

# Private to some releases of torch, whose profiler imports it at its first use.
with contextlib.suppress(ImportError):
    import torch.profiler._cupti_monitor  # noqa: F401
