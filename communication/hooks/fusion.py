"""Average gradients in fused groups during the backward pass.

Used by fusion, Espresso and combined plans.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise

import torch
import torch.distributed as dist
from torch import Tensor, nn

from communication.espresso.operations import Operation, operations
from communication.espresso.options import Option
from communication.hooks.device_time import courses_of
from communication.hooks.encoders import encoders
from communication.hooks.exchange_order import InOrder
from communication.hooks.executor import Carrying
from communication.hooks.feedback import ErrorFeedback, seed_of
from communication.hooks.groups import PlacementGroups
from communication.hooks.measures import CommunicationMeasures, StageNotes
from communication.hooks.residuals import RESIDUAL, Kept, Segment, from_state, to_state

#: Key of a state's origin: rank, number of ranks, plan digest as eight 32-bit integers, iteration.
_ORIGIN = "origin"
#: Stands for a compression point when residuals belong to no encoder.
_CARRIED = 1 << 20


class FusedGradients:
    """Averages gradients over all ranks.

    Gradients are copied into one flat FP32 buffer, in order of readiness; a group is a slice of it. Groups
    are queued in the same order on all ranks: each once its gradients are ready and all earlier groups are
    queued. Gradients are divided by the number of ranks before they are encoded, so that a residual has the
    same weight if a later generation with another number of ranks sends it.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        boundaries: Sequence[int],
        options: Sequence[Option],
        feedback: ErrorFeedback,
        groups: PlacementGroups,
        *,
        plan_digest: str,
        seed: int = 0,
        active: Callable[[], bool] = lambda: True,
    ) -> None:
        """Attach to the gradients of parameters, in their order of readiness.

        Args:
            boundaries: exclusive end index of each group. options: of each group.
            groups: process groups within and between servers.
            plan_digest: 64 hex digits; residuals saved under the same digest are restored unchanged.
            seed: of all random choices, equal on all ranks.
            active: returns False while hooks must ignore gradients.

        Raises:
            ValueError: parameters are on no device or several, or a dtype is not floating-point of at most 4
                bytes.
        """
        devices = {parameter.device for parameter in parameters.values()}
        if len(devices) != 1:
            raise ValueError(f"parameters are on {len(devices)} devices; all must be on one")
        (device,) = devices
        for name, parameter in parameters.items():
            if not parameter.dtype.is_floating_point or parameter.dtype.itemsize > 4:
                raise ValueError(
                    f"{name} has dtype {parameter.dtype}; it must be a floating-point type of at most 4 bytes"
                )
        self._parameters = list(parameters.items())
        self._options = options
        self._feedback = feedback
        self._groups = groups
        self._digest, self._seed, self._active = plan_digest, seed, active
        self._iteration = 0
        #: Added to the next gradients, by parameter.
        self._carried: dict[str, list[Kept]] = {}
        sizes = [parameter.numel() for _, parameter in self._parameters]
        ends = [0, *accumulate(sizes)]
        self._flat = torch.zeros(ends[-1], device=device)
        self._views = self._flat.split(sizes)
        self._spans = list(pairwise((0, *boundaries)))
        self._slices = [self._flat[ends[low] : ends[high]] for low, high in self._spans]
        self._layout = [_segments(self._parameters[low:high]) for low, high in self._spans]
        self._encoders = [
            encoder
            for number, values in enumerate(self._slices)
            for encoder in encoders(options[number], number, len(values), groups)
        ]
        self._order = InOrder(device)
        steps = {option: _steps(option, groups) for option in set(options)}
        self._at_once = max(map(len, steps.values())) <= 1
        later = {(op.step.level, op.second_step) for collectives in steps.values() for op in collectives[1:]}
        # Start a first collective early only if no option uses its process group for a later collective:
        # ranks could otherwise start collectives there in different orders. All options are checked, so that
        # every rank decides alike.
        self._begins_at_once = [
            bool(steps[option])
            and (steps[option][0].step.level, steps[option][0].second_step) not in later
            and steps[option][0].takes_part(groups.server, groups.gpu)
            for option in options
        ]
        self._notes = StageNotes()
        self._courses = courses_of(groups.everybody)
        self._ready: set[int] = set()
        self._sent: list[Carrying] = []
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(partial(self._gradient_is_ready, place))
            for place, (_, parameter) in enumerate(self._parameters)
        ]

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._order.close()

    # -- during the backward pass

    def _gradient_is_ready(self, place: int, parameter: Tensor) -> None:
        if self._active():
            self._store_gradient(place, parameter)
            self._send_complete_groups()

    def _store_gradient(self, place: int, parameter: Tensor) -> None:
        assert parameter.grad is not None
        view = self._views[place]
        view.copy_(parameter.grad.reshape(-1)).div_(self._groups.shape.workers)
        self._add_carried(self._parameters[place][0], view)
        self._ready.add(place)

    def _send_complete_groups(self) -> None:
        """Send the complete groups that follow the groups sent so far."""
        for number in range(len(self._sent), len(self._spans)):
            if not self._ready.issuperset(range(*self._spans[number])):
                return
            seed = seed_of(self._seed, self._iteration)
            values = self._slices[number]
            if not number:
                self._notes.begin_iteration()
            carrying = Carrying(
                self._options[number],
                number,
                values,
                self._feedback,
                self._groups,
                seed,
                self._notes,
                self._courses(),
            )
            self._sent.append(carrying)
            if self._at_once:
                self._order.begin(carrying.works())
            else:
                self._order.add(
                    carrying.works(),
                    carrying.channels(),
                    begins_at_once=self._begins_at_once[number],
                )

    # -- after the backward pass

    def after_backward(self, *, late: bool = False) -> None:
        """Wait for all groups; afterwards gradients are the mean over all ranks, or its lossy
        approximation.

        A gradient that was not computed here counts as zeros.

        Args:
            late: use the gradients as they are now, because no hook reported their readiness.

        Raises the first error of an exchange; this object cannot be used afterwards.
        """
        if late:
            for place, (_, parameter) in enumerate(self._parameters):
                if parameter.grad is not None:
                    self._store_gradient(place, parameter)
        for place, view in enumerate(self._views):
            if place not in self._ready:
                view.zero_()
                self._ready.add(place)
        self._send_complete_groups()
        self._order.wait()
        for (low, high), carrying in zip(self._spans, self._sent, strict=True):
            parts = carrying.sums.split([len(view) for view in self._views[low:high]])
            for place, part in zip(range(low, high), parts, strict=True):
                _set_gradient(self._parameters[place][1], part)
        self._ready, self._sent = set(), []
        self._iteration += 1
        workers = self._groups.shape.workers
        self._notes.sums.dense_bytes += 2 * (workers - 1) * self._flat.nbytes // workers

    def take_back(self, parameters: Collection[nn.Parameter]) -> None:
        """Add the present gradients of these parameters to their next ones, since they are not applied: what
        was sent of them are residuals. Values that are not finite are not kept."""
        if self._feedback.codec.exact:
            return
        dropped = set(map(id, parameters))
        for name, parameter in self._parameters:
            if id(parameter) in dropped and parameter.grad is not None:
                values = parameter.grad.detach().reshape(-1).float().nan_to_num(0.0, 0.0, 0.0)
                # Every rank carries its share, because the sum over all ranks counts.
                values /= self._groups.shape.workers
                self._add_carried(name, values)
                self._carried[name] = [Kept(RESIDUAL, name, _CARRIED, 0, values)]

    def _add_carried(self, name: str, values: Tensor) -> None:
        """Add to a parameter's values what is carried of it, and carry it no more."""
        for residual in self._carried.pop(name, ()):
            end = residual.start + len(residual.values)
            values[residual.start : end].add_(residual.values.to(values.device))

    def _all_ranks(self, own: bool) -> bool:
        """Return whether ``own`` holds on all ranks."""
        if self._groups.everybody is None:
            return own
        value = torch.tensor([float(own)], device=self._flat.device)
        dist.all_reduce(value, op=dist.ReduceOp.MIN, group=self._groups.everybody)
        return bool(value.item())

    def measured(self) -> CommunicationMeasures:
        """Return the measurements since the last call and the present norm of the residuals.

        Call between iterations.
        """
        measures = self._notes.forget()
        carried = [residual for residuals in self._carried.values() for residual in residuals]
        squares = sum(float(residual.values.double().square().sum()) for residual in carried)
        measures.residual_norm = (self._feedback.norm() ** 2 + squares) ** 0.5
        return measures

    # -- from one generation to the next

    def state(self) -> dict[str, Tensor]:
        """Return this rank's error feedback between two iterations; empty if it keeps nothing.

        Under a lossy codec, a rank without residuals still states its origin: ranks resume only together.
        """
        copies = frozenset(encoder.row for encoder in self._encoders if not encoder.first)
        residuals = self._feedback.kept(self._layout, copies)
        residuals += [residual for carried in self._carried.values() for residual in carried]
        if not residuals and self._feedback.codec.exact:
            return {}
        return {**to_state(residuals), _ORIGIN: torch.tensor([*self._origin(), self._iteration])}

    def load_state(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Load error feedback. All ranks call this together.

        If every rank receives its own state under the same plan, it is restored unchanged. Otherwise each
        residual goes to the encoder of this rank that covers the same elements and that no other rank
        replicates. The remaining residuals are added to the next gradients, so that their sum is preserved.
        Momentum without such an encoder is dropped. The iteration restarts at 0.

        Args:
            states: the part assigned to this rank.

        Raises ValueError for a state that `state` did not make.
        """
        own = len(states) == 1 and _ORIGIN in states[0] and states[0][_ORIGIN].tolist()[:-1] == self._origin()
        residuals = [
            residual
            for state in states
            for residual in from_state({name: values for name, values in state.items() if name != _ORIGIN})
        ]
        if self._all_ranks(own):
            rows = [encoder.row for encoder in self._encoders]
            remaining = self._feedback.resume(residuals, rows, self._layout, self._flat.device)
            self._iteration = int(states[0][_ORIGIN][-1])
        else:
            rows = [encoder.row for encoder in self._encoders if not encoder.replicated]
            remaining = self._feedback.take(residuals, rows, self._layout, self._flat.device)
            self._iteration = 0
        self._carried = {name: [] for name, _ in self._parameters}
        for residual in remaining:
            if residual.parameter in self._carried:
                self._carried[residual.parameter].append(replace(residual, point=_CARRIED))

    def _origin(self) -> list[int]:
        words = [int(self._digest[at : at + 8], 16) for at in range(0, 64, 8)]
        place = self._groups.server * self._groups.shape.gpus_per_server + self._groups.gpu
        return [place, self._groups.shape.workers, *words]


def _steps(option: Option, groups: PlacementGroups) -> list[Operation]:
    """Return the option's collectives, in order."""
    return [operation for operation in operations(option, groups.shape) if not operation.step.is_codec]


def _segments(parameters: Sequence[tuple[str, nn.Parameter]]) -> list[Segment]:
    sizes = [parameter.numel() for _, parameter in parameters]
    begins = accumulate(sizes[:-1], initial=0)
    return [
        Segment(name, begin, size) for (name, _), begin, size in zip(parameters, begins, sizes, strict=True)
    ]


def _set_gradient(parameter: nn.Parameter, part: Tensor) -> None:
    if parameter.grad is None:
        parameter.grad = part.view(parameter.shape).to(parameter.dtype, copy=True)
    else:
        parameter.grad.copy_(part.view(parameter.shape))
