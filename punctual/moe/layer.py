"""The mixture-of-experts layer: a gate, experts, and an exchange between them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from punctual.moe.balance import balance_part
from punctual.moe.dispatch import (
    Rows,
    build_rows,
    cap_counts,
    combine,
    count_experts,
    expert_capacity,
    keep_first,
)
from punctual.moe.exchange import ExpertExchange, LocalExchange
from punctual.moe.gates import Gate, Routing, TopK
from punctual.moe.gates.gate import gate_probabilities
from punctual.moe.records import LayerRecords


class Expert(nn.Module):
    """A feed-forward network without biases: `width` to `hidden`, ReLU, and back."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, hidden, bias=False)
        self.outer = nn.Linear(hidden, width, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        """Transform rows of shape (rows, width)."""
        outputs: Tensor = self.outer(functional.relu(self.inner(rows)))
        return outputs


@dataclass(frozen=True)
class _PassCounts:
    """Counts of all workers in one forward pass, on the host.

    Attributes:
        rows: (workers, experts): rows before any is dropped.
        first_choices: (experts): tokens by best expert, those that count in the balance loss.
    """

    tokens: int
    multi_expert_tokens: int
    rows: Tensor
    first_choices: Tensor


class MoELayer(nn.Module):
    """A mixture of experts in place of a feed-forward network.

    Dropped rows and the balance loss follow from the counts of all ranks of the exchange and the order of
    samples, so they do not depend on how a batch is split over these ranks.

    Attributes:
        experts: one module each.
        exchange: transfers rows to the experts; local by default.
        records: balance losses and routing counts until they are read.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        experts: int,
        gate: Gate = TopK(2),  # noqa: B008 - it is frozen
        *,
        capacity_factor: float | None = None,
        balance_weight: float = 0.01,
        evaluation_gate: Gate | None = None,
        tiers: Literal["auto"] | None = None,
    ) -> None:
        """Build the layer with random weights.

        Args:
            width: elements of a token.
            hidden: elements of an expert's inner layer.
            gate: `TopK(k)`, or `Adaptive(threshold)` for one or two experts a token.
            capacity_factor: in training mode an expert takes at most this many times an even share of all
                rows; the rest are dropped. None: it takes all.
            balance_weight: factor of the balance loss beside the task's loss.
            evaluation_gate: the gate in evaluation mode; None for the same one.
            tiers: "auto" lets the platform keep the states of experts in host memory and files while they
                train, so that the device need not hold them. Training gives the same bits. None: on the
                device.

        Raises:
            ValueError: an argument is out of range; the message names it.
        """
        super().__init__()
        for name, value in (("width", width), ("hidden", hidden), ("experts", experts)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} is {value!r}; it must be a whole number of at least 1.")
        for name, one_gate in (("gate", gate), ("evaluation_gate", evaluation_gate or gate)):
            if not isinstance(one_gate, Gate):
                raise ValueError(f"{name} is {one_gate!r}; it must be TopK(k) or Adaptive(threshold).")
            one_gate.check(experts)
        if capacity_factor is not None and not capacity_factor > 0:
            raise ValueError(f"capacity_factor is {capacity_factor!r}; it must be positive or None.")
        if not balance_weight >= 0:
            raise ValueError(f"balance_weight is {balance_weight!r}; it must be at least 0.")
        self.width, self.hidden = width, hidden
        self.gate, self.evaluation_gate = gate, evaluation_gate or gate
        if tiers not in (None, "auto"):
            raise ValueError(f'tiers is {tiers!r}; it must be "auto" or None.')
        self.capacity_factor, self.balance_weight = capacity_factor, balance_weight
        self.tiers = tiers
        self.gate_weights = nn.Linear(width, experts, bias=False)
        # Normalised tokens get logits of variance 1. The default gives 1/3, with hardly any large margins.
        nn.init.normal_(self.gate_weights.weight, std=width**-0.5)
        self.experts = nn.ModuleList(Expert(width, hidden) for _ in range(experts))
        self.exchange: ExpertExchange = LocalExchange()
        self.records = LayerRecords(experts)

    def forward(self, tokens: Tensor, padding: Tensor | None = None) -> Tensor:
        """Return each token's weighted sum of its experts' outputs.

        Args:
            tokens: (samples, ..., width), in the order of samples.
            padding: of the shape of `tokens` without the last dimension: True where there is no token. Such
                places go to no expert, count nowhere, and their output is 0.

        Raises:
            ValueError: a shape does not fit.
            FloatingPointError: the gate's probabilities are not finite, on any worker.
        """
        if tokens.dim() < 2 or tokens.shape[-1] != self.width:
            raise ValueError(
                f"tokens have the shape {tuple(tokens.shape)}; the last size must be {self.width}."
            )
        if padding is not None and (padding.shape, padding.dtype) != (tokens.shape[:-1], torch.bool):
            raise ValueError(
                f"padding has the shape {tuple(padding.shape)} and the type {padding.dtype}; it must be "
                f"{tuple(tokens.shape[:-1])} and torch.bool."
            )
        if torch.compiler.is_compiling():
            # Imported here, since it imports the compiler.
            from punctual.moe.compiling import run_uncompiled

            mixed: Tensor = run_uncompiled(self._mix, tokens, padding)
            return mixed
        return self._mix(tokens, padding)

    def _mix(self, tokens: Tensor, padding: Tensor | None) -> Tensor:
        flat = tokens.reshape(-1, self.width)
        is_token = self._find_tokens(flat, padding)
        if padding is not None:
            # Padding may contain NaN.
            flat = flat.masked_fill(~is_token.unsqueeze(1), 0)
        routing = (self.gate if self.training else self.evaluation_gate).route(
            gate_probabilities(flat, self.gate_weights.weight)
        )
        routing = replace(
            routing,
            probabilities=routing.probabilities * is_token.unsqueeze(1),
            is_used=routing.is_used & is_token.unsqueeze(1),
            is_balanced=routing.is_balanced & is_token,
        )
        rows, own_counts = build_rows(routing, len(self.experts))
        counts = self._gather_counts(routing, own_counts, is_token)
        rows, kept = self._drop_rows(rows, counts.rows)
        self._record(routing, counts, kept, is_token)
        if self.training and not _is_repeated():
            self.records.note_samples(is_token, routing.uses_several, len(tokens))
        sent = flat.index_select(0, rows.tokens)
        if torch.is_autocast_enabled(sent.device.type) and sent.dtype != torch.float64:
            # The experts would convert them anyway; this way rows and outputs have one type on all ranks.
            sent = sent.to(torch.get_autocast_dtype(sent.device.type))
        outputs = self.exchange.exchange(sent, kept, self._compute_expert)
        combined = self.exchange.watch_combined(combine(outputs, rows, len(flat)))
        return combined.to(tokens.dtype).view(tokens.shape)

    def _find_tokens(self, flat: Tensor, padding: Tensor | None) -> Tensor:
        """Return which rows of `flat` are tokens that count."""
        if padding is None or self.exchange.share == 0:
            return torch.full(flat.shape[:1], self.exchange.share > 0, device=flat.device)
        return ~padding.reshape(-1)

    def _compute_expert(self, expert: int, rows: Tensor) -> Tensor:
        outputs: Tensor = self.experts[expert](rows)
        return outputs

    def _gather_counts(self, routing: Routing, own_rows: Tensor, is_token: Tensor) -> _PassCounts:
        """Exchange the counts of this pass.

        Raises:
            FloatingPointError: probabilities of some worker are not finite; all workers raise.
        """
        experts = len(self.experts)
        first_choices = count_experts(routing.experts[:, 0], routing.is_balanced, experts)
        is_finite = routing.probabilities.isfinite().all(dim=1)
        others = torch.stack([is_token.sum(), routing.uses_several.sum(), (~is_finite).sum()])
        gathered = self.exchange.gather(torch.cat([own_rows, first_choices, others]))
        rows, all_first_choices, all_others = gathered.split([experts, experts, 3], dim=1)
        tokens, multi_expert_tokens, not_finite = all_others.sum(0).tolist()
        if not_finite:
            raise FloatingPointError(
                f"the gate of a MoELayer is not finite for {not_finite} of {tokens} tokens: its input or its "
                "weights are NaN or infinite. Lower the learning rate, or clip gradients."
            )
        return _PassCounts(tokens, multi_expert_tokens, rows, all_first_choices.sum(0))

    def _drop_rows(self, rows: Rows, counts: Tensor) -> tuple[Rows, Tensor]:
        """Drop the rows beyond the capacity; return the remaining ones, and all workers' counts of them."""
        if self.capacity_factor is None or not self.training:
            return rows, counts
        capacity = expert_capacity(int(counts.sum()), len(self.experts), self.capacity_factor)
        kept = cap_counts(counts, capacity)
        rank = self.exchange.rank
        return keep_first(rows, counts[rank], kept[rank]), kept

    def _record(self, routing: Routing, counts: _PassCounts, kept: Tensor, is_token: Tensor) -> None:
        """Record counts and balance loss of this pass.

        Raises:
            ValueError: the pass is in a checkpoint that cannot return a balance loss.
        """
        is_repeated = _is_repeated()
        if not is_repeated:
            dropped = (counts.rows - kept).sum(0)
            self.records.note_counts(counts.tokens, counts.multi_expert_tokens, counts.rows.sum(0), dropped)
            if self.records.on_choices is not None:
                self.records.on_choices(routing.experts[:, 0], is_token)
        if self.training and self.exchange.share:
            # A checkpointed module runs again in the backward pass. It must save the same tensors there.
            self._record_balance(routing.probabilities.sum(0), counts, is_repeated)

    def _record_balance(self, probability_sums: Tensor, counts: _PassCounts, is_repeated: bool) -> None:
        # This worker's loss has the weight `share` in the mean of all; its part of the balance loss, 1.
        balance = balance_part(probability_sums, counts.first_choices, counts.tokens) / self.exchange.share
        if not torch.is_grad_enabled():
            self.records.note_pass_without_gradients()
        elif self.balance_weight and not is_repeated:
            self.records.note_loss(self.balance_weight * balance)
        elif self.balance_weight and self.records.had_pass_without_gradients:
            raise ValueError(
                "a MoELayer in a checkpoint with use_reentrant=True has no balance loss; pass "
                "use_reentrant=False to torch.utils.checkpoint."
            )
        if not is_repeated:
            self.records.note_balance(balance.detach())

    def extra_repr(self) -> str:
        """Return what `print(model)` shows of the layer itself."""
        return f"width={self.width}, hidden={self.hidden}, gate={self.gate}"

    def __getstate__(self) -> dict[str, Any]:
        """Copy without process groups and graphs, which cannot be copied."""
        return {**self.__dict__, "exchange": LocalExchange(), "records": LayerRecords(len(self.experts))}


def _is_repeated() -> bool:
    """Return whether this forward pass runs again in a backward pass, since a module is checkpointed."""
    return bool(torch._C._current_graph_task_id() != -1)
