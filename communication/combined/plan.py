"""A plan of all gradients: for the sparse ones and for the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from communication.cupcake.partitions import Boundaries
from communication.cupcake.plan import FusionPlan
from communication.espresso.options import option_code
from communication.espresso.plan import EspressoPlan
from communication.plan import Prediction, content_digest
from communication.zen.plan import ZenPlan

#: The codec of a plan that compresses nothing.
NO_CODEC = "none"


@dataclass(frozen=True)
class GroupPlan:
    """Espresso's option for each of Cupcake's groups (ours; in neither paper).

    Attributes:
        boundaries: for each group one more than its last tensor, in order of readiness.
        layout: digest of the names and sizes of these tensors.
        options: Espresso's plan with each group as one tensor.
    """

    boundaries: Boundaries
    layout: str
    options: EspressoPlan

    def to_message(self) -> dict[str, Any]:
        """Return the message that ranks execute, with its digest."""
        codes = list(dict.fromkeys(each.option for each in self.options.tensors))
        content = {
            "planner": "combined",
            "servers": self.options.placement.servers,
            "gpus_per_server": self.options.placement.gpus_per_server,
            "codec": self.options.codec,
            "bytes_per_element": self.options.bytes_per_element,
            "layout": self.layout,
            "boundaries": list(self.boundaries),
            "options": [option_code(option) for option in codes],
            "group_options": [codes.index(each.option) for each in self.options.tensors],
        }
        return {**content, "digest": content_digest(content)}


@dataclass(frozen=True)
class CandidatePlan:
    """The best plan of one planner.

    Attributes:
        planner: its name. codec: that compresses, `NO_CODEC` for none.
        lossless: whether every gradient arrives as computed, up to the rounding of sums.
        predicted: an iteration with all gradients. buffer_bytes: of device memory on each GPU.
        sparse: plan of sparse gradients; None to gather their rows as without any plan.
        rest: plan of the other gradients; None to all-reduce them in buckets as without any plan.
        experts: choices of Lina's schedule, which covers all gradients; None to exchange experts as without
            any plan.
    """

    planner: str
    codec: str
    lossless: bool
    predicted: Prediction
    buffer_bytes: int = 0
    sparse: ZenPlan | None = None
    rest: FusionPlan | EspressoPlan | GroupPlan | None = None
    experts: Mapping[str, Any] | None = None

    @property
    def messages(self) -> dict[str, Mapping[str, Any]]:
        """The messages of `sparse`, `rest` and `experts` that are set, for execution by ranks."""
        parts = {"sparse": self.sparse, "rest": self.rest}
        messages: dict[str, Mapping[str, Any]] = {
            name: part.to_message() for name, part in parts.items() if part is not None
        }
        if self.experts is not None:
            messages["experts"] = {**self.experts, "digest": content_digest(self.experts)}
        return messages

    @property
    def digest(self) -> str:
        """SHA-256 of the messages."""
        return content_digest({name: message["digest"] for name, message in self.messages.items()})
