"""The rows that tokens send to experts, one for each expert of a token, and the sum of the outputs.

Rows are sorted by expert, and by token for each expert. The tokens of all workers are in the order of
samples, so a capacity drops the same rows on any number of workers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from punctual.moe.gates import Routing


@dataclass(frozen=True)
class Rows:
    """Rows of this worker's tokens, sorted by expert.

    Attributes:
        tokens: (rows): index of the token.
        weights: (rows): factor of the expert's output.
    """

    tokens: Tensor
    weights: Tensor


def build_rows(routing: Routing, experts: int) -> tuple[Rows, Tensor]:
    """Return one row for each used expert of each token, and the number of rows by expert."""
    # Positions in (tokens, choices), flattened: in the order of tokens.
    positions = routing.is_used.flatten().nonzero().squeeze(1)
    chosen = routing.experts.flatten()[positions]
    order = torch.argsort(chosen, stable=True)
    positions = positions[order]
    rows = Rows(
        tokens=positions // routing.experts.shape[1],
        weights=routing.weights.flatten()[positions],
    )
    return rows, count_experts(routing.experts, routing.is_used, experts)


def count_experts(ids: Tensor, is_counted: Tensor, experts: int) -> Tensor:
    """Return how often each expert's id occurs among those that count."""
    # Unlike `bincount`, it does not wait for a GPU.
    counts = torch.zeros(experts, dtype=torch.int64, device=ids.device)
    return counts.index_add_(0, ids.flatten(), is_counted.flatten().to(counts.dtype))


def expert_capacity(rows: int, experts: int, factor: float) -> int:
    """Return how many rows an expert accepts: `factor` times an even share of all rows, rounded up."""
    return math.ceil(factor * rows / experts)


def cap_counts(counts: Tensor, capacity: int) -> Tensor:
    """Limit the rows of each expert to the first `capacity`, in the order of workers.

    Args:
        counts: (workers, experts): number of rows.
    """
    before = counts.cumsum(dim=0) - counts
    return torch.minimum(counts, (capacity - before).clamp(min=0))


def keep_first(rows: Rows, counts: Tensor, kept: Tensor) -> Rows:
    """Keep the first rows of each expert.

    Args:
        counts, kept: (experts): number of rows before and after, on the host.
    """
    starts = counts.cumsum(0) - counts
    rank_in_expert = torch.arange(int(counts.sum())) - starts.repeat_interleave(counts)
    is_kept = (rank_in_expert < kept.repeat_interleave(counts)).to(rows.tokens.device)
    return Rows(rows.tokens[is_kept], rows.weights[is_kept])


def combine(outputs: Tensor, rows: Rows, tokens: int) -> Tensor:
    """Add up each token's weighted outputs, as (tokens, width); 0 for a token without rows.

    The sum has the precision of the weights. On CUDA the order of additions varies, but a sum of two does
    not.
    """
    weighted = outputs * rows.weights.unsqueeze(1)
    return weighted.new_zeros(tokens, outputs.shape[1]).index_add(0, rows.tokens, weighted)
