"""Average gradients in fused groups during the backward pass.

Used by fusion, Espresso and combined plans.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from communication.hooks.residuals import Kept, Segment, from_state, to_state

#: Key of a state's origin: rank, ranks, the plan's digest in words, and the iteration.
_ORIGIN = "origin"
#: Stands for a compression point when residuals belong to no encoder.
_CARRIED = 1 << 20


class FusedGradients:
    """Averages gradients over all ranks.

    Gradients are copied into one flat FP32 buffer, in order of readiness; a group is a slice of it. Groups
    are sent in the same order on all ranks: each when its gradients are ready and all earlier groups are
    sent.
    Gradients are divided by the number of ranks before they are encoded, so that residuals keep their weight
    wherever they are sent later.
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
            ValueError: parameters on several devices or none, or wider than FP32.
        """
        devices = {each.device for each in parameters.values()}
        if len(devices) != 1:
            raise ValueError(f"parameters are on {len(devices)} devices; all must be on one")
        (device,) = devices
        for name, each in parameters.items():
            if not each.dtype.is_floating_point or each.dtype.itemsize > 4:
                raise ValueError(
                    f"{name} has dtype {each.dtype}; it must be a floating-point type of at most 4 bytes"
                )
        self._parameters = list(parameters.items())
        self._options = options
        self._feedback = feedback
        self._groups = groups
        self._digest, self._seed, self._active = plan_digest, seed, active
        self._iteration = 0
        #: Added to the next gradients, by parameter.
        self._carried: dict[str, list[Kept]] = {}
        sizes = [each.numel() for _, each in self._parameters]
        ends = [0, *accumulate(sizes)]
        self._flat = torch.zeros(ends[-1], device=device)
        self._views = self._flat.split(sizes)
        self._spans = list(pairwise((0, *boundaries)))
        self._slices = [self._flat[ends[low] : ends[high]] for low, high in self._spans]
        self._layout = [_segments(self._parameters[low:high]) for low, high in self._spans]
        self._encoders = [
            each
            for number, values in enumerate(self._slices)
            for each in encoders(options[number], number, len(values), groups)
        ]
        self._order = InOrder(device)
        steps = {each: _steps(each, groups) for each in set(options)}
        self._at_once = max(map(len, steps.values())) <= 1
        later = {(one.step.level, one.second_step) for each in steps.values() for one in each[1:]}
        # A first step may start early only if no option uses its process group in a later step. All options
        # count, so that ranks agree.
        self._begins_at_once = [
            bool(steps[each])
            and (steps[each][0].step.level, steps[each][0].second_step) not in later
            and steps[each][0].takes_part(groups.server, groups.gpu)
            for each in options
        ]
        self._notes = StageNotes()
        self._courses = courses_of(groups.everybody)
        self._ready: set[int] = set()
        self._sent: list[Carrying] = []
        self._hooks = [
            each.register_post_accumulate_grad_hook(partial(self._gradient_is_ready, place))
            for place, (_, each) in enumerate(self._parameters)
        ]

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._order.close()

    # -- during the backward pass

    def _gradient_is_ready(self, place: int, parameter: Tensor) -> None:
        if self._active():
            self._take(place, parameter)
            self._send_complete_groups()

    def _take(self, place: int, parameter: Tensor) -> None:
        assert parameter.grad is not None
        view = self._views[place]
        view.copy_(parameter.grad.reshape(-1)).div_(self._groups.shape.workers)
        for each in self._carried.pop(self._parameters[place][0], ()):
            view[each.start : each.start + len(each.values)].add_(each.values.to(view.device))
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
        """
        if late:
            for place, (_, parameter) in enumerate(self._parameters):
                if parameter.grad is not None:
                    self._take(place, parameter)
        for place, view in enumerate(self._views):
            if place not in self._ready:
                view.zero_()
                self._ready.add(place)
        self._send_complete_groups()
        self._order.wait()
        for (low, high), carrying in zip(self._spans, self._sent, strict=True):
            parts = carrying.sums.split([len(view) for view in self._views[low:high]])
            for place, part in zip(range(low, high), parts, strict=True):
                _give(self._parameters[place][1], part)
        self._ready, self._sent = set(), []
        self._iteration += 1
        workers = self._groups.shape.workers
        self._notes.sums.dense_bytes += 2 * (workers - 1) * self._flat.nbytes // workers

    def _agreed(self, values: Tensor, operation: object) -> list[float]:
        """Return the elementwise maximum or minimum over all ranks."""
        if self._groups.everybody is None:
            return list(values.tolist())
        values = values.to(self._flat.device)
        dist.all_reduce(values, op=operation, group=self._groups.everybody)
        return list(values.tolist())

    def measured(self) -> CommunicationMeasures:
        """Return the measurements since the last call; between two iterations."""
        found = self._notes.forget()
        squares = [each.values.double().square().sum() for some in self._carried.values() for each in some]
        found.residual_norm = (self._feedback.norm() ** 2 + sum(map(float, squares))) ** 0.5
        return found

    # -- from one generation to the next

    def state(self) -> dict[str, Tensor]:
        """Return this rank's error feedback between two iterations; empty if it keeps nothing."""
        copies = frozenset(each.row for each in self._encoders if not each.first)
        kept = self._feedback.kept(self._layout, copies)
        kept += [each for some in self._carried.values() for each in some]
        if not kept:
            return {}
        return {**to_state(kept), _ORIGIN: torch.tensor([*self._origin(), self._iteration])}

    def load_state(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Load error feedback. All ranks call this together.

        If every rank receives its own state under the same plan, it is restored unchanged. Otherwise,
        residuals that fit no unreplicated encoder of this rank are added to its next gradients. Their sum is
        preserved; momentum that fits no encoder is dropped.

        Args:
            states: the part assigned to this rank.

        Raises ValueError for a state that `state` did not make.
        """
        own = len(states) == 1 and _ORIGIN in states[0] and states[0][_ORIGIN].tolist()[:-1] == self._origin()
        kept = [
            each
            for state in states
            for each in from_state({name: values for name, values in state.items() if name != _ORIGIN})
        ]
        if all(self._agreed(torch.tensor([float(own)]), dist.ReduceOp.MIN)):
            rows = [each.row for each in self._encoders]
            left = self._feedback.resume(kept, rows, self._layout, self._flat.device)
            self._iteration = int(states[0][_ORIGIN][-1])
        else:
            rows = [each.row for each in self._encoders if not each.replicated]
            left = self._feedback.take(kept, rows, self._layout, self._flat.device)
            self._iteration = 0
        self._carried = {name: [] for name, _ in self._parameters}
        for each in left:
            if each.parameter in self._carried:
                self._carried[each.parameter].append(replace(each, point=_CARRIED))

    def _origin(self) -> list[int]:
        words = [int(self._digest[at : at + 8], 16) for at in range(0, 64, 8)]
        place = self._groups.server * self._groups.shape.gpus_per_server + self._groups.gpu
        return [place, self._groups.shape.workers, *words]


def _steps(option: Option, groups: PlacementGroups) -> list[Operation]:
    """Return the option's collectives, in order."""
    return [each for each in operations(option, groups.shape) if not each.step.is_codec]


def _segments(parameters: Sequence[tuple[str, nn.Parameter]]) -> list[Segment]:
    ends = [0, *accumulate(each.numel() for _, each in parameters)]
    return [Segment(name, begin, each.numel()) for (name, each), begin in zip(parameters, ends, strict=False)]


def _give(parameter: nn.Parameter, part: Tensor) -> None:
    if parameter.grad is None:
        parameter.grad = part.view(parameter.shape).to(parameter.dtype, copy=True)
    else:
        parameter.grad.copy_(part.view(parameter.shape))
