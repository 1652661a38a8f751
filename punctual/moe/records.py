"""A layer's records of its forward passes until they are read: balance losses and routing counts."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

#: Balance losses that a layer keeps. A layer runs a few times in an iteration; more losses mean that nothing
#: adds them to the loss.
KEPT_LOSSES = 64


@dataclass
class RoutingCounts:
    """Counts of the tokens of all workers in one or more forward passes of a layer.

    Attributes:
        tokens: number of tokens without padding.
        multi_expert_tokens: number of tokens that went to more than one expert.
        rows: (experts): rows for each expert, including dropped ones.
        dropped: (experts): rows beyond the capacity.
        balance_loss: mean over the forward passes in training mode, without the layer's weight; 1 means even
            use. Each worker has a part: the mean over workers, weighted by samples, is the loss of the global
            batch.
    """

    tokens: int
    multi_expert_tokens: int
    rows: Tensor
    dropped: Tensor
    balance_loss: float = 0.0

    @property
    def two_expert_share(self) -> float:
        """Share of the tokens that went to more than one expert."""
        return self.multi_expert_tokens / max(self.tokens, 1)

    @property
    def dropped_share(self) -> float:
        """Share of the rows that were dropped."""
        return int(self.dropped.sum()) / max(int(self.rows.sum()), 1)


class _Tally:
    """Counts and balance losses of forward passes until one reader takes them."""

    def __init__(self, experts: int) -> None:
        self._experts = experts
        self._begin()

    def _begin(self) -> None:
        none = torch.zeros(self._experts, dtype=torch.int64)
        self._counts = RoutingCounts(0, 0, none, none.clone())
        self._balance_sum: Tensor | None = None
        self._balances = 0

    def add_counts(self, tokens: int, multi_expert_tokens: int, rows: Tensor, dropped: Tensor) -> None:
        """Add the counts of one forward pass."""
        self._counts.tokens += tokens
        self._counts.multi_expert_tokens += multi_expert_tokens
        # Not in place: tensors of torch.inference_mode() cannot be changed in another mode.
        self._counts.rows = self._counts.rows + rows
        self._counts.dropped = self._counts.dropped + dropped

    def add_balance(self, balance: Tensor) -> None:
        """Add the balance loss of one forward pass."""
        self._balances += 1
        # Read from the device only on request.
        self._balance_sum = balance if self._balance_sum is None else self._balance_sum + balance

    def take(self) -> RoutingCounts:
        """Return what was added since the last call."""
        counts = self._counts
        if self._balance_sum is not None:
            counts.balance_loss = self._balance_sum.item() / self._balances
        self._begin()
        return counts


class LayerRecords:
    """The records of one layer. Reading a value removes it.

    Counts have two readers: `routing_counts`, and the runtime that trains the model.
    """

    def __init__(self, experts: int) -> None:
        self._losses: deque[Tensor] = deque(maxlen=KEPT_LOSSES)
        self._has_pass_without_gradients = False
        self._had_pass_without_gradients = False
        #: Whether the counts of each sample are kept.
        self.counts_samples = False
        self._sample_counts: deque[Tensor] = deque(maxlen=KEPT_LOSSES)
        #: Called in each forward pass with the best expert of each place, and whether the place has a token.
        self.on_choices: Callable[[Tensor, Tensor], None] | None = None
        self._counts, self._runtime_counts = _Tally(experts), _Tally(experts)

    def note_counts(self, tokens: int, multi_expert_tokens: int, rows: Tensor, dropped: Tensor) -> None:
        """Add the counts of one forward pass."""
        for tally in (self._counts, self._runtime_counts):
            tally.add_counts(tokens, multi_expert_tokens, rows, dropped)

    def note_balance(self, balance: Tensor) -> None:
        """Add the balance loss of one forward pass in training mode, without gradient."""
        for tally in (self._counts, self._runtime_counts):
            tally.add_balance(balance)

    def note_samples(self, is_token: Tensor, uses_several: Tensor, samples: int) -> None:
        """Keep the counts of each sample of this worker, if `counts_samples` is set.

        Args:
            is_token, uses_several: (tokens): those of a sample are contiguous.
        """
        if self.counts_samples:
            places = len(is_token) // max(samples, 1)
            by_sample = torch.stack([is_token, uses_several]).view(2, samples, places)
            self._sample_counts.append(by_sample.sum(2))

    @property
    def had_pass_without_gradients(self) -> bool:
        """Whether a training pass ran without gradients since the losses were read, or before they were last
        read, because the backward pass follows that."""
        return self._has_pass_without_gradients or self._had_pass_without_gradients

    def note_pass_without_gradients(self) -> None:
        """Note a training pass that has no loss."""
        self._has_pass_without_gradients = True

    def note_loss(self, loss: Tensor) -> None:
        """Keep a weighted balance loss, with its gradient, until it is added to the loss."""
        if len(self._losses) == KEPT_LOSSES:
            warnings.warn(
                f"a MoELayer keeps the balance losses of {KEPT_LOSSES} forward passes: add "
                "punctual.moe.balance_loss(model) to the loss, or use balance_weight=0",
                RuntimeWarning,
                stacklevel=2,
            )
        self._losses.append(loss)

    def take_losses(self) -> list[Tensor]:
        """Return the losses since they were read last."""
        losses = list(self._losses)
        self._losses.clear()
        self._had_pass_without_gradients = self._has_pass_without_gradients
        self._has_pass_without_gradients = False
        return losses

    def take_sample_counts(self) -> list[Tensor]:
        """Return the counts of each sample since they were read last, by forward pass in training mode: for
        each pass (2, samples), tokens and those that went to more than one expert."""
        counts = list(self._sample_counts)
        self._sample_counts.clear()
        return counts

    def take_counts(self) -> RoutingCounts:
        """Return the counts since they were read last."""
        return self._counts.take()

    def take_runtime_counts(self) -> RoutingCounts:
        """Return the counts since the runtime last read them, independently of other readers."""
        return self._runtime_counts.take()
