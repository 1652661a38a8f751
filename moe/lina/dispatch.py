"""Which host of an expert computes which token, and the load of the all-to-all (Lina 6.2; step I4)."""

from __future__ import annotations

import numpy as np

from moe.lina.expert_paths import Counts, Probabilities
from moe.lina.expert_placement import ReplicaPlacement


def quotas(counts: Counts, placement: ReplicaPlacement) -> Counts:
    """Return the tokens of each expert that each device computes, as (devices, experts).

    Hosts divide tokens in proportion to their shares. Tokens left over by rounding go to the largest
    fractions; of equal ones to the lower device.
    Args:
        counts: (experts): tokens of all devices.

    Raises:
        ValueError: `counts` has another shape or negative numbers.
    """
    return _divide(_check_counts(counts, (placement.experts,)), placement.weights)


def dispatch(counts: Counts, placement: ReplicaPlacement, *, prefers_local: bool = False) -> Counts:
    """Return the tokens of each expert that each device sends to each, as (sources, devices, experts).

    The tokens of an expert, by source and then by position, are cut at the quotas of its hosts.

    Args:
        counts: (sources, experts): tokens of each device.
        prefers_local: a source first serves its own tokens, as far as its quota goes.

    Raises:
        ValueError: `counts` has another shape or negative numbers.
    """
    counts = _check_counts(counts, (placement.devices, placement.experts))
    device_quotas = quotas(counts.sum(axis=0), placement)
    local = np.minimum(counts, device_quotas) if prefers_local else np.zeros_like(counts)
    flows = _overlaps(counts - local, device_quotas - local)
    each = np.arange(placement.devices)
    flows[each, each] += local
    return flows


def token_devices(experts: Counts, flows: Counts) -> Counts:
    """Return the device that computes each token of one source.

    Args:
        experts: (tokens): the expert of each token.
        flows: (devices, experts): tokens that this source sends to each device.

    Raises:
        ValueError: `flows` is for other tokens.
    """
    experts = np.asarray(experts, dtype=np.int64)
    if not np.array_equal(np.bincount(experts, minlength=flows.shape[1]), flows.sum(axis=0)):
        raise ValueError("flows have other numbers of tokens by expert than experts")
    devices = np.empty(len(experts), dtype=np.int64)
    by_expert = np.tile(np.arange(flows.shape[0]), flows.shape[1])
    devices[np.argsort(experts, kind="stable")] = np.repeat(by_expert, flows.T.ravel())
    return devices


def imbalance(loads: Counts) -> float:
    """Return the largest load relative to the mean; 1 if all are 0."""
    return float(loads.max() / loads.mean()) if loads.any() else 1.0


def _divide(counts: Counts, weights: Probabilities) -> Counts:
    """Divide each count (n) by its column of weights (parts, n) into whole numbers.

    The rest after rounding goes to the largest fractions; of equal ones to the earlier part.
    """
    exact = counts * weights / weights.sum(axis=0)
    # Rounded, since rounding errors must not make equal fractions unequal.
    whole = np.floor(exact + 1e-9).astype(np.int64)
    order = np.argsort(-np.round(exact - whole, 9), axis=0, kind="stable")
    has_one_more = np.arange(len(whole))[:, None] < counts - whole.sum(axis=0)
    np.put_along_axis(whole, order, np.take_along_axis(whole, order, axis=0) + has_one_more, axis=0)
    return np.asarray(whole)


def _overlaps(counts: Counts, device_quotas: Counts) -> Counts:
    """Return how many tokens source and device have in common, if both cut the same sequence of tokens."""
    source_ends, device_ends = np.cumsum(counts, axis=0), np.cumsum(device_quotas, axis=0)
    ends = np.minimum(source_ends[:, None], device_ends[None])
    starts = np.maximum((source_ends - counts)[:, None], (device_ends - device_quotas)[None])
    return np.asarray(np.maximum(0, ends - starts))


def _check_counts(counts: Counts, shape: tuple[int, ...]) -> Counts:
    counts = np.asarray(counts, dtype=np.int64)
    if counts.shape != shape:
        raise ValueError(f"counts have the shape {counts.shape}; it must be {shape}")
    if (counts < 0).any():
        raise ValueError(f"counts have {counts.min()}; they must be at least 0")
    return counts
