"""Functions with mixture-of-experts layers: the numbers of workers that they are measured on (decision 0018).

The numbers of experts and the sizes of the model are those that a worker reported; before that, the numbers
of experts are those in the function's source.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import inf

from django.db.models import Min

from cluster.models import Cluster, Gpu
from moe.planning.levels import gang_levels
from moe.planning.memory import WorkerMemory, fewest_workers, find_binding
from scheduling.core.question.quantities import memory_text
from scheduling.core.question.worker_counts import MOST_WORKERS, measurable_levels
from scheduling.models import FunctionVersion, ScalingCurve
from scheduling.services.memory.disk_shares import smallest_disk
from scheduling.services.memory.host_memory import smallest_share
from scheduling.services.memory.mixture_models import model_sizes

_gang_levels = lru_cache(maxsize=1024)(gang_levels)


def worker_counts_of(
    version: FunctionVersion, curve: ScalingCurve | None, global_batch_size: int
) -> Sequence[int]:
    """Return the only numbers of workers on which a function is measured; empty for powers of two."""
    if version.worker_counts:
        counts: list[int] = version.worker_counts
        return counts
    mixture = None if curve is None else curve.mixture
    experts = version.experts if mixture is None else [layer["experts"] for layer in mixture["layers"]]
    return _gang_levels(tuple(sorted(set(experts))), global_batch_size, MOST_WORKERS) if experts else ()


def unfit_workers(cluster: Cluster, curve: ScalingCurve | None) -> int:
    """Return the most workers that cannot hold the model, by its reported sizes; 0 without these."""
    if curve is None or curve.mixture is None:
        return 0
    share = worker_memory(cluster, curve.gpu_kind)
    fewest = fewest_workers(model_sizes(curve.mixture), share)
    return MOST_WORKERS if fewest is None else fewest - 1


def worker_memory(cluster: Cluster, kind: str) -> WorkerMemory:
    """Return the least memory and disk that every worker on a kind of GPU has."""
    known = Gpu.objects.measurable(cluster, kind).filter(memory_bytes__gt=0)
    device = known.aggregate(least=Min("memory_bytes"))["least"]
    return WorkerMemory(
        inf if device is None else float(device), smallest_share(cluster, kind), smallest_disk(cluster, kind)
    )


def why_no_level(
    cluster: Cluster, version: FunctionVersion, curve: ScalingCurve, global_batch_size: int
) -> str | None:
    """Return why no number of workers here holds a model of reported sizes, and what would; None if one
    does."""
    if curve.mixture is None:
        return None
    unfit = unfit_workers(cluster, curve)
    gpus = Gpu.objects.measurable(cluster, curve.gpu_kind).count()
    counts = worker_counts_of(version, curve, global_batch_size)
    most = max(measurable_levels(global_batch_size, gpus, counts), default=1)
    if most > unfit:
        return None
    share = worker_memory(cluster, curve.gpu_kind)
    sizes = model_sizes(curve.mixture)
    memory = find_binding(sizes, share, most)
    if memory is None:
        return None
    needed = sizes.needed_bytes(memory, most)
    text = (
        f"The model does not fit: {memory} binds. With {most} workers, the most here, each needs at least "
        f"{memory_text(needed)} and has {memory_text(share.of(memory))}"
    )
    if unfit < MOST_WORKERS:
        larger = unfit + 1
        enough = memory_text(sizes.needed_bytes(memory, larger))
        return f"{text}; with {larger} workers each would need {enough}."
    least = memory_text(sizes.needed_bytes(memory, MOST_WORKERS))
    return f"{text}; on any number of workers it needs {least} for each."
