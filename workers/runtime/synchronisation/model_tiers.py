"""The experts of a model whose layers have tiers (`MoELayer(..., tiers="auto")`).

Each rank keeps the states of its hosted experts in files below its temporary folder. Host memory holds the
states of two layers: the one that computes, and the one that is fetched ahead.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Mapping
from functools import reduce
from pathlib import Path

from torch import Tensor

from moe.moesys.cache import Key
from moe.moesys.choices import LAYERS_IN_HOST_MEMORY
from punctual.moe import MoELayer
from punctual.moe.model import ExpertParameter
from workers.runtime.failures import WorkerFailureError
from workers.runtime.function.parts import TrainingParts
from workers.runtime.function.returned import refused
from workers.runtime.tiers.tiered_experts import TieredExperts
from workers.runtime.tiers.usage import TierUsage

#: Usable share of the disk's free space. Nearly full disks slow down and wear out.
_USABLE_DISK = 0.9


def find_tiered(layers: Mapping[str, MoELayer], spread: Mapping[str, ExpertParameter]) -> frozenset[str]:
    """Return the names of the parameters whose experts are kept in tiers.

    Args:
        layers: all layers by their names.
        spread: the parameters of spread experts.
    """
    return frozenset(name for name, each in spread.items() if layers[each.layer].tiers == "auto")


class ModelTiers:
    """The tiers of one rank's experts."""

    def __init__(
        self,
        parts: TrainingParts,
        layers: Mapping[str, MoELayer],
        tiered: Mapping[str, ExpertParameter],
    ) -> None:
        """Move the states of this rank's experts into files.

        Args:
            tiered: the parameters of `find_tiered` that this rank hosts, by their names.

        Raises:
            WorkerFailureError: the disk has no room, or the function's experts or optimizer do not fit.
        """
        self._places: dict[str, tuple[TieredExperts, Key, str]] = {}
        self._experts: list[TieredExperts] = []
        try:
            root = Path(tempfile.mkdtemp(prefix="expert-states-"))
            free_bytes = int(_USABLE_DISK * shutil.disk_usage(root).free)
            if parts.disk.room_bytes is not None:
                free_bytes = min(free_bytes, parts.disk.room_bytes)
        except OSError as error:
            raise WorkerFailureError("storage_failed", f"experts' states have no folder: {error}") from error
        self._remove_files = weakref.finalize(self, shutil.rmtree, root, ignore_errors=True)
        for shape, keys in _keys_by_shape(layers, tiered).items():
            modules = {key: layers[name].experts[key[1]] for key, name in keys.items()}
            hosted = [layer for layer, _ in keys]
            entries = LAYERS_IN_HOST_MEMORY * max(map(hosted.count, set(hosted)))
            folder = root / "x".join(map(str, shape))
            try:
                experts = TieredExperts(modules, parts.optimizer, folder, entries, free_bytes, parts.disk)
            except ValueError as error:
                raise refused(f'a MoELayer has tiers="auto": {error}') from error
            free_bytes -= experts.host.files.bytes_on_disk
            self._experts.append(experts)
            self._note_places(experts, keys, tiered)

    def value(self, name: str) -> Tensor | None:
        """Return the current value of a parameter in tiers; None for any other parameter."""
        if name not in self._places:
            return None
        experts, key, parameter = self._places[name]
        return experts.snapshot(key)[0][parameter]

    def usage(self) -> TierUsage:
        """Return the usage of all tiers since they were built."""
        return reduce(TierUsage.plus, (experts.usage() for experts in self._experts), TierUsage())

    def give_back(self) -> None:
        """Restore the states of model and optimizer in host memory; delete the files."""
        for experts in self._experts:
            experts.give_back()
        self._remove_files()

    def _note_places(
        self, experts: TieredExperts, keys: Mapping[Key, str], tiered: Mapping[str, ExpertParameter]
    ) -> None:
        by_expert = {(name, key[1]): key for key, name in keys.items()}
        for name, each in tiered.items():
            key = by_expert.get((each.layer, each.expert))
            if key is not None:
                own = ".".join(name.split(".")[-2:])
                self._places[name] = (experts, key, own)


def _keys_by_shape(
    layers: Mapping[str, MoELayer], tiered: Mapping[str, ExpertParameter]
) -> dict[tuple[int, int], dict[Key, str]]:
    """Return the keys of experts with the names of their layers, by the shape of the experts."""
    numbers = {name: number for number, name in enumerate(layers)}
    shapes: dict[tuple[int, int], dict[Key, str]] = {}
    for each in tiered.values():
        layer = layers[each.layer]
        keys = shapes.setdefault((layer.width, layer.hidden), {})
        keys[numbers[each.layer], each.expert] = each.layer
    return shapes
