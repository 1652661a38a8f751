"""All synchronisers of a runtime plan over one model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import reduce

import torch.distributed as dist
from torch import Tensor

from communication.hooks.measures import CommunicationMeasures
from punctual.moe.model import expert_parameters
from punctual.moe.tables import table_blocks
from punctual.protocol.limits import PLAN_REFUSED
from workers.runtime.experts.host_experts import take_to_device
from workers.runtime.failures import WorkerFailureError
from workers.runtime.function.parts import TrainingParts
from workers.runtime.runtime_plan import RuntimePlan, SynchroniserChoice
from workers.runtime.state.layout import OwnState
from workers.runtime.synchronisation.interface import GradientSynchroniser
from workers.runtime.synchronisation.kinds import KINDS
from workers.runtime.synchronisation.model import DistributedModel
from workers.runtime.synchronisation.usage import GradientUsage


class Synchronisation:
    """A model whose gradients are synchronised by a runtime plan.

    Attributes:
        model: lends the module to `train()`, and averages its dense gradients.
        usage: which parameters got a gradient.
    """

    model: DistributedModel
    usage: GradientUsage

    def __init__(
        self, plan: RuntimePlan, parts: TrainingParts, group: dist.ProcessGroup | None = None
    ) -> None:
        """Wrap the model for training in `group` (default: the whole generation), on all its ranks together.

        Raises:
            WorkerFailureError: the plan names a kind that this runtime lacks, or leaves gradients
                unsynchronised; DDP cannot train this model.
        """
        if len({choice.kind for choice in plan.synchronisers}) < len(plan.synchronisers):
            raise _refused("it names a kind twice")
        self._synchronisers = {choice.kind: _of_kind(choice) for choice in plan.synchronisers}
        left = {name: each for name, each in parts.module.named_parameters() if each.requires_grad}
        if not any(each.spreads_experts for each in self._synchronisers.values()):
            whole = map(
                parts.module.get_parameter,
                expert_parameters(parts.module).keys() | table_blocks(parts.module).keys(),
            )
            take_to_device(whole, parts.optimizer, parts.device)
        wrapped = None
        for synchroniser in self._synchronisers.values():
            taken = synchroniser.takes(parts, left)
            left = {name: parameter for name, parameter in left.items() if name not in taken}
            wrapped = synchroniser.wrap(parts, group, taken) or wrapped
            if plan.lossless and not synchroniser.lossless:
                raise _refused("it is to lose nothing, and compresses gradients with a codec that does")
        if left:
            raise _refused(f"it leaves the gradients of {next(iter(left))} to nobody")
        if wrapped is None:
            raise _refused("no kind of it wraps the model")
        self.model = wrapped
        spread = {id(parts.module.get_parameter(name)) for name in parts.experts.hosts}
        self.usage = GradientUsage(parts.module, without=spread)

    def of_kind(self, kind: str) -> GradientSynchroniser | None:
        """Return the synchroniser of a kind; None if the plan has none."""
        return self._synchronisers.get(kind)

    def begin_alike(self) -> None:
        """Give every rank the first one's initial values.

        Raises:
            WorkerFailureError: the ranks have built different models.
        """
        for synchroniser in self._synchronisers.values():
            synchroniser.begin_alike()

    def begin_iteration(self, iteration: int) -> None:
        """Begin an iteration. All ranks call this together."""
        for synchroniser in self._synchronisers.values():
            synchroniser.begin_iteration(iteration)
        self.model.begin_iteration()

    def before_backward(self, loss: Tensor) -> None:
        """Begin to average the gradients of the loss."""
        self.model.before_backward(loss)

    def gradients_are_there(self, *, in_pieces: bool) -> None:
        """Complete the averages of the model once all gradients of this rank are computed.

        Args:
            in_pieces: whether a gradient came in several pieces.

        Raises:
            WorkerFailureError: a gradient came in pieces, and its first piece was taken for the gradient.
        """
        self.usage.note()
        self.model.after_backward(in_pieces=in_pieces)

    def after_backward(self) -> None:
        """Finish the synchronisation of every kind after the backward pass."""
        for synchroniser in self._synchronisers.values():
            synchroniser.after_backward()

    def drop_unused(self, sums: Tensor) -> bool:
        """Remove the gradients of parameters that no rank used; return whether any gradient is left.

        Args:
            sums: the sums of all ranks' flags of `usage`.
        """
        unused = self.usage.unused(sums)
        for synchroniser in self._synchronisers.values():
            synchroniser.take_back(unused)
        for parameter in unused:
            parameter.grad = None
        return self.usage.has_gradients

    def close(self) -> None:
        """Release the resources of every kind. All ranks of the group call this together."""
        for synchroniser in self._synchronisers.values():
            synchroniser.close()

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Let the group's first rank run the whole model alone. All ranks call this together."""
        with ExitStack() as stack:
            for synchroniser in self._synchronisers.values():
                stack.enter_context(synchroniser.whole())
            yield

    @contextmanager
    def rehearsing(self) -> Iterator[None]:
        """Let this rank run the model alone, to measure only time and memory."""
        with ExitStack() as stack:
            for synchroniser in self._synchronisers.values():
                stack.enter_context(synchroniser.rehearsing())
            yield

    @contextmanager
    def restoring(self) -> Iterator[None]:
        """Let a state be loaded into a model that already trains, as into a newly built one."""
        with ExitStack() as stack:
            for synchroniser in self._synchronisers.values():
                stack.enter_context(synchroniser.restoring())
            yield

    def measured(self) -> CommunicationMeasures | None:
        """Return this rank's measurements since the last call, of all kinds with a plan; None if none has
        one."""
        told = [each.measured() for each in self._synchronisers.values()]
        found = [each for each in told if each is not None]
        return reduce(CommunicationMeasures.with_others, found) if found else None

    def state(self) -> OwnState:
        """Return the state that each kind keeps on this rank between iterations."""
        kept = {kind: synchroniser.state() for kind, synchroniser in self._synchronisers.items()}
        return {kind: state for kind, state in kept.items() if state}

    def load_state(self, states: Sequence[OwnState]) -> None:
        """Load each kind's states of the earlier ranks that are assigned to this one; drop states of kinds
        that the plan no longer has."""
        for kind, synchroniser in self._synchronisers.items():
            synchroniser.load_state([state[kind] for state in states if kind in state])


def _of_kind(choice: SynchroniserChoice) -> GradientSynchroniser:
    kind = KINDS.get(choice.kind)
    if kind is None:
        raise _refused(f"this runtime has no synchroniser {choice.kind!r}, only {', '.join(sorted(KINDS))}")
    try:
        return kind(choice.choices)
    except (KeyError, TypeError, ValueError) as error:
        raise _refused(f"synchroniser {choice.kind!r} cannot do what was chosen: {error!r}") from error


def _refused(problem: str) -> WorkerFailureError:
    return WorkerFailureError(PLAN_REFUSED, f"the runtime plan cannot be followed: {problem}")
