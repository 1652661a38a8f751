"""The kinds of gradient synchronisers by their names in runtime plans."""

from __future__ import annotations

from collections.abc import Mapping

from workers.runtime.synchronisation.compressed import CompressedSynchroniser
from workers.runtime.synchronisation.dense import DenseSynchroniser
from workers.runtime.synchronisation.expert_parallel import ExpertParallelSynchroniser
from workers.runtime.synchronisation.interface import GradientSynchroniser
from workers.runtime.synchronisation.lina import LinaSynchroniser
from workers.runtime.synchronisation.sparse import SparseSynchroniser
from workers.runtime.synchronisation.zen import ZenSynchroniser

KINDS: Mapping[str, type[GradientSynchroniser]] = {
    "compressed": CompressedSynchroniser,
    "dense": DenseSynchroniser,
    "expert_parallel": ExpertParallelSynchroniser,
    "lina": LinaSynchroniser,
    "sparse": SparseSynchroniser,
    "zen": ZenSynchroniser,
}
