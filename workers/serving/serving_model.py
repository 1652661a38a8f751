"""The model of a deployment: a person's function, with the weights that its job left."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from punctual.function import TrainingFunction
from punctual.moe import moe_layers
from punctual.randomness import derive_seed, seed_generators
from workers.runtime.failures import WorkerFailureError, blaming_the_function
from workers.runtime.function_loading import overrides
from workers.runtime.returned import check_model
from workers.serving.experts.held import move_without_experts

#: Of the tensors that weights and model do not share, so many are named.
_NAMED = 3


@dataclass(frozen=True)
class ServingModel:
    """A function's model on the device where it serves."""

    function: TrainingFunction
    module: torch.nn.Module

    def predict(self, batch: list[Any]) -> Any:
        """Call the function's `predict`."""
        with torch.inference_mode():
            return self.function.predict(batch, self.module)


def load_model(
    function: TrainingFunction,
    entry: str,
    seed: int,
    weights: Path | None,
    device: torch.device,
    *,
    keeps_experts_on_host: bool = False,
) -> ServingModel:
    """Build the function's model with the stored weights, in evaluation mode on a device.

    Args:
        weights: None where no job left any.
        keeps_experts_on_host: leave the experts of mixture-of-experts layers in host memory.

    Raises:
        WorkerFailureError: `function_load_error` where the class has no `predict`, or the weights are not
            those of its model; `function_error` where the function cannot build it.
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
    layers = moe_layers(module).values() if keeps_experts_on_host else ()
    move_without_experts(module, layers, device)
    module.eval()
    return ServingModel(function, module)


def _load_weights(module: torch.nn.Module, weights: Path) -> None:
    try:
        state = torch.load(weights, map_location="cpu", weights_only=True, mmap=True)
        found = module.load_state_dict(state, strict=False)
    except Exception as error:
        # torch raises errors of many kinds here; all of them concern the file and the function's model.
        raise WorkerFailureError("function_load_error", f"the weights cannot be loaded: {error}") from error
    for verb, names in (("lack", found.missing_keys), ("have, unlike the model,", found.unexpected_keys)):
        if names:
            named = ", ".join(names[:_NAMED])
            raise WorkerFailureError(
                "function_load_error", f"the weights {verb} {len(names)} tensors: {named}"
            )
