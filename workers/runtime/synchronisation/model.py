"""DDP's part of an iteration. `train()` gets the function's own module; DDP averages its gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.utils import _to_kwargs, _verify_param_shape_across_processes
from torch.nn.parallel import DistributedDataParallel

from workers.runtime.function.returned import refused
from workers.runtime.synchronisation.pieces import has_functions_in_python

#: Types that all collective libraries accept. Tensors of other types are sent as bytes.
_CARRIED = frozenset(
    {torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8}
)


class DistributedModel(DistributedDataParallel):
    """DDP without its forward pass.

    Its hooks see each gradient, whether `train()` calls the model, a method or a submodule, once or several
    times. `train()` therefore never calls this object and gets the unwrapped module.
    """

    #: Whether gradients are now averaged as soon as they are ready.
    averages = False
    #: Whether gradients are averaged after the backward pass, as they come in several pieces.
    is_late = False
    #: Whether a gradient ever came in several pieces; None before the first iteration.
    _came_in_pieces: bool | None = None

    def begin_iteration(self) -> None:
        """Give every rank the first one's buffers. All ranks call this together."""
        if not self._has_rebuilt_buckets:
            # DDP rebuilds its buckets at the start of an iteration, from the parameters pushed here.
            self.reducer._push_all_rebuilt_params()
        self._pre_forward()

    @contextmanager
    def lend(self) -> Iterator[nn.Module]:
        """Yield the module as `train()` gets it.

        Scripts written for DDP find it under `model.module` too. On a GPU its inputs are moved there, as DDP
        moves them.
        """
        module = self.module
        added = not hasattr(module, "module")
        if added:
            # Bypass nn.Module's __setattr__, which would make it a submodule of itself.
            module.__dict__["module"] = module
        hook = None
        if self.device_ids:
            device = torch.device(self.device_type, self.device_ids[0])
            hook = module.register_forward_pre_hook(input_mover(device), prepend=True, with_kwargs=True)
        try:
            with self._inside_ddp_forward():
                yield module
        finally:
            if hook is not None:
                hook.remove()
            if added:
                module.__dict__.pop("module", None)

    def before_backward(self, loss: Tensor) -> None:
        """Begin to average the gradients of the loss."""
        if self._came_in_pieces is None:
            self.is_late = has_functions_in_python(loss)
        else:
            self.is_late = self.is_late and self._came_in_pieces
        if not self.is_late:
            self._post_forward(None)
            self.averages = True

    def after_backward(self, *, in_pieces: bool) -> None:
        """Complete the average once all gradients of this rank are computed. A parameter without a gradient
        counts as zeros, so that other ranks do not wait for it.

        Args:
            in_pieces: whether a gradient came in several pieces.

        Raises:
            WorkerFailureError: a gradient came in pieces, and its first piece was taken for the gradient.
        """
        self.averages = False
        if in_pieces and not self.is_late:
            raise refused(
                "the backward pass: the gradient of a parameter came in several pieces, which it did not in "
                "the first iteration: give torch.utils.checkpoint use_reentrant=False"
            )
        self._came_in_pieces = in_pieces or bool(self._came_in_pieces)
        if self.is_late:
            self._post_forward(None)
        ready = [
            place for place, parameter in enumerate(self._averaged) if self.is_late or parameter.grad is None
        ]
        if ready:
            _in_a_backward_pass(lambda: self._are_ready(ready))

    def _are_ready(self, places: Sequence[int]) -> None:
        for place in places:
            self._fire_reducer_autograd_hook(place)

    def _build_params_for_reducer(self) -> Any:
        """Return the parameters in the order in which they fill buckets: from the model's end, as in a
        backward pass.

        DDP would sort its buckets after the first backward pass, by arrival of the gradients. A ring
        all-reduce begins each part of a bucket at another rank, so a gradient's place in its bucket
        determines the order of its sum. With three ranks or more, the first iteration of a generation would
        differ in its last bits from the same iteration of an uninterrupted run.
        """
        parameters, sparse = super()._build_params_for_reducer()
        #: In the reducer's order.
        self._averaged: list[nn.Parameter] = parameters[::-1]
        return self._averaged, sparse[::-1]

    def begin_alike(self) -> None:
        """Give every rank the first one's values, as DDP does on construction with `init_sync`."""
        kept = [
            (name, tensor)
            for name, tensor in [*self.module.named_parameters(), *self.module.named_buffers()]
            if name not in self.parameters_to_ignore
        ]
        trained = [tensor for _, tensor in kept if isinstance(tensor, nn.Parameter) and tensor.requires_grad]
        group: dist.ProcessGroup = self.process_group
        if trained:
            _verify_param_shape_across_processes(group, trained)
        self._distributed_broadcast_coalesced(
            [tensor.detach() for _, tensor in kept], self.broadcast_bucket_size
        )

    def _distributed_broadcast_coalesced(
        self, tensors: Sequence[Tensor], buffer_size: int, authoritative_rank: int = 0
    ) -> None:
        carried = [_as_carried(tensor) for tensor in tensors]
        dist._broadcast_coalesced(self.process_group, carried, buffer_size, authoritative_rank)
        for tensor, values in zip(tensors, carried, strict=True):
            if values.data_ptr() != tensor.data_ptr():
                tensor.copy_(values.view(tensor.dtype).view(tensor.shape))


class _InBackward(torch.autograd.Function):
    """Calls a function during a backward pass."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, action: Callable[[], None]) -> Tensor:
        ctx.action = action
        return anchor.clone()

    @staticmethod
    def backward(ctx: Any, *_gradients: Tensor) -> tuple[None, None]:
        ctx.action()
        return None, None


def _in_a_backward_pass(action: Callable[[], None]) -> None:
    """Run `action` in a backward pass of its own: DDP's reducer finishes in a callback of a backward pass."""
    with torch.enable_grad():
        _InBackward.apply(torch.zeros((), requires_grad=True), action).backward()


def _as_carried(tensor: Tensor) -> Tensor:
    """Return the tensor as it is sent to other ranks: itself, or its bytes."""
    if tensor.dtype in _CARRIED or not tensor.numel():
        return tensor
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def input_mover(device: torch.device) -> Callable[..., Any]:
    """Return a forward pre-hook that moves the inputs to the device."""

    def move(_module: nn.Module, inputs: Any, keywords: Any) -> tuple[Any, Any]:
        if not inputs and not keywords:
            return inputs, keywords
        moved_inputs, moved_keywords = _to_kwargs(inputs, keywords, device, False)
        return moved_inputs[0], moved_keywords[0]

    return move
