"""Places a model on its device: whole if it fits, else with a ring of layers."""

from __future__ import annotations

import logging

import torch
from torch import nn

from moe.moesys.serving_ring import judge_ring, plan_serving_ring
from workers.runtime.failures import WorkerFailureError
from workers.serving.errors import NotServingError
from workers.serving.ring.layer_ring import LayerRing
from workers.serving.ring.layers import count_bytes, find_layers

_log = logging.getLogger(__name__)


def place_model(module: nn.Module, device: torch.device, device_bytes: int | None) -> LayerRing | None:
    """Move a model from host memory to a device.

    Args:
        device_bytes: device memory that its weights may take; None: no limit.

    Returns:
        The ring of the layers that do not all fit; None if the whole model does.

    Raises:
        WorkerFailureError: `declined`: no ring fits; `start_failed`: memory cannot be allocated.
    """
    all_bytes = count_bytes(module)
    if device_bytes is None or all_bytes <= device_bytes:
        module.to(device)
        return None
    least_bytes = all_bytes
    for layers in find_layers(module):
        sizes = [layer.bytes for layer in layers]
        other_bytes = all_bytes - sum(parameter.nbytes for layer in layers for parameter in layer.parameters)
        plan = plan_serving_ring(sizes, other_bytes, device_bytes)
        if plan is not None:
            try:
                ring = LayerRing(layers, plan, device)
                module.to(device)
            except (RuntimeError, MemoryError, NotServingError) as error:
                message = f"a ring of {plan.sections} of {plan.layers} layers cannot be built: {error}"
                raise WorkerFailureError("start_failed", message) from error
            _log.info(
                "%d of %d layers stream from host memory: the weights have %d bytes, the device takes %d",
                plan.layers - len(plan.pinned), plan.layers, all_bytes, device_bytes,
            )  # fmt: skip
            return ring
        if len(layers) > 2:
            least_bytes = min(least_bytes, other_bytes + 2 * max(sizes))
    needed = (
        "it has no mixture-of-experts layers or list of modules of which most could wait in host memory"
        if least_bytes == all_bytes
        else f"with two of its layers there and the others in host memory they take {least_bytes}"
    )
    raise WorkerFailureError(
        "declined",
        f"the model's weights take {all_bytes} bytes of device memory and may take {device_bytes}; {needed}",
    )


def admit(ring: LayerRing, target_seconds: float | None) -> None:
    """Return if a call can meet the latency target, by the measured copies.

    Raises:
        WorkerFailureError: `declined`.
    """
    verdict = judge_ring(ring.plan, ring.times(), target_seconds)
    if not verdict.is_admitted:
        raise WorkerFailureError("declined", verdict.reason)
