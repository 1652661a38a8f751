"""The model of a deployment: a person's function with the weights of its job."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from punctual.function import TrainingFunction
from punctual.moe import moe_layers
from punctual.randomness import derive_seed, seed_generators
from workers.runtime.failures import WorkerFailureError, blaming_the_function
from workers.runtime.function.function_loading import overrides
from workers.runtime.function.returned import check_model
from workers.serving.experts.held import move_without_experts
from workers.serving.ring.layer_ring import LayerRing
from workers.serving.ring.placing import place_model

#: Maximum number of mismatched tensors that an error names.
_NAMED = 3


@dataclass(frozen=True)
class ServingModel:
    """A function's model on the device where it serves.

    Attributes:
        ring: of layers that stream from host memory; None: the whole model is on the device.
    """

    function: TrainingFunction
    module: torch.nn.Module
    ring: LayerRing | None = None

    def predict(self, batch: list[Any]) -> Any:
        """Call the function's `predict`."""
        with torch.inference_mode(), self.ring.call() if self.ring else nullcontext():
            return self.function.predict(batch, self.module)


def load_model(
    function: TrainingFunction,
    entry: str,
    seed: int,
    weights: Path | None,
    device: torch.device,
    *,
    keeps_experts_on_host: bool = False,
    device_bytes: int | None = None,
) -> ServingModel:
    """Build the function's model with the stored weights, in evaluation mode on a device.

    Args:
        weights: None if the deployment has no job.
        keeps_experts_on_host: leave the experts of mixture-of-experts layers in host memory.
        device_bytes: device memory that weights may take; None: no limit.

    Raises:
        WorkerFailureError: `function_load_error` if the class has no `predict`, or the weights are not its
            model's; `function_error` if the function cannot build the model; `declined` if not even a ring of
            its layers fits.
    """
    if not overrides(function, "predict"):
        raise WorkerFailureError(
            "function_load_error", f"{entry} has no method predict(batch, model), so it cannot be deployed"
        )
    seed_generators(derive_seed(seed, "initial model"))
    with blaming_the_function("init_model()"):
        module = check_model(function.init_model())
    if weights is not None:
        _load_weights(module, weights)
    module.eval()
    if keeps_experts_on_host:
        move_without_experts(module, moe_layers(module).values(), device)
        return ServingModel(function, module)
    return ServingModel(function, module, place_model(module, device, device_bytes))


def _load_weights(module: torch.nn.Module, weights: Path) -> None:
    try:
        state = torch.load(weights, map_location="cpu", weights_only=True, mmap=True)
        found = module.load_state_dict(state, strict=False)
    except Exception as error:
        # torch raises many types of errors here; all concern the file and the function's model.
        raise WorkerFailureError("function_load_error", f"the weights cannot be loaded: {error}") from error
    for verb, names in (("lack", found.missing_keys), ("have, unlike the model,", found.unexpected_keys)):
        if names:
            named = ", ".join(names[:_NAMED])
            raise WorkerFailureError(
                "function_load_error", f"the weights {verb} {len(names)} tensors: {named}"
            )
