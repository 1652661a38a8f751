"""Records of measurements in the agent's format, of bounded size; none if a bound is exceeded."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import median
from types import MappingProxyType
from typing import Any

from torch import nn

from punctual.names import name_problem
from punctual.protocol import limits
from workers.runtime.measuring.gradient_times import IterationTimes, gaps

_log = logging.getLogger(__name__)


def profile_fields(
    module: nn.Module,
    iterations: Sequence[IterationTimes],
    *,
    gpus: int,
    sparse: Sequence[Mapping[str, Any]],
    codecs: Sequence[Mapping[str, Any]],
    links: Mapping[str, Any] = MappingProxyType({}),
    without: Collection[str] = (),
    experts: Mapping[str, Any] | None = None,
) -> dict[str, Any] | None:
    """Return the fields of a `communication_profile`; None without measurements, or above a record's limits.

    Args:
        without: names of parameters without a communication plan.
        experts: traffic of the layers with experts; None for a model without them.
    """
    trained = {
        name: each for name, each in module.named_parameters() if each.requires_grad and name not in without
    }
    sizes = {name: each.numel() for name, each in trained.items()}
    if not iterations or not sizes or len(sizes) > limits.TENSORS_OF_A_MODEL:
        return None
    if not all(map(_can_be_told, sizes)):
        _log.warning("gradients are not told of: a name is too long, or not printable")
        return None
    fields = {
        "gpus": gpus,
        "iterations": len(iterations),
        "bytes_per_element": _bytes_per_element(trained.values()),
        "other_seconds": median(each.other for each in iterations),
        "tensors": [
            {"name": name, "elements": sizes[name], "gap_seconds": round(gap, 9)}
            for name, gap in gaps(iterations, sizes)
        ],
        "sparse": list(sparse),
        "codecs": list(codecs),
        "links": dict(links),
        "experts": None if experts is None else dict(experts),
    }
    return fields if _fits(fields) else None


def window_fields(
    plan: str, iteration: int, iterations: Sequence[IterationTimes], measured: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the fields of a `communication_window`; None without iterations.

    Args:
        plan: digest of the runtime plan.
        measured: the synchronisers' measurements; times and bytes are sums over these iterations.
    """
    if not iterations:
        return None
    count = len(iterations)
    fields = {
        "plan": plan,
        "iteration": iteration,
        "iteration_seconds": [round(each.seconds, 6) for each in iterations],
        "exposed_seconds": sum(each.exposed for each in iterations) / count,
        **{name: measured[name] / count for name in ("encode_seconds", "exchange_seconds", "decode_seconds")},
        **{name: measured[name] // count for name in ("received_bytes", "dense_bytes")},
        **{name: measured[name] for name in ("push_imbalance", "pull_imbalance", "residual_norm")},
        "densities": [{"name": name, "density": density} for name, density in measured["densities"].items()],
        "spans": measured["spans"][: limits.SPANS_OF_A_WINDOW],
    }
    return fields if _fits(fields) else None


def _bytes_per_element(trained: Iterable[nn.Parameter]) -> int:
    """Return the element size that most elements of gradients have; 8 if a gradient cannot be sent as FP32,
    because no plan can carry it then."""
    elements: Counter[int] = Counter()
    for each in trained:
        if each.numel() and not (each.is_floating_point() and each.element_size() <= 4):
            return 8
        elements[each.element_size()] += each.numel()
    return max(elements, key=lambda size: (elements[size], size))


def _can_be_told(name: str) -> bool:
    return 0 < len(name) <= limits.TENSOR_NAME_CHARACTERS and name_problem(name) is None


def _fits(fields: Mapping[str, Any]) -> bool:
    try:
        return len(json.dumps(fields, allow_nan=False)) <= limits.COMMUNICATION_RECORD_BYTES
    except ValueError:
        _log.warning("what was measured of gradients is not finite")
        return False
