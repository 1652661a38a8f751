"""A plan of all gradients: what is done to the sparse ones, and what to the rest."""

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

#: What a plan calls compressing nothing.
NO_CODEC = "none"


@dataclass(frozen=True)
class GroupPlan:
    """Espresso's option for each of Cupcake's groups (ours; neither paper has it).

    Attributes:
        boundaries: for each group one more than its last tensor, in order of readiness.
        layout: digest of the names and sizes of these tensors.
        options: of the groups, each of which Espresso took for a tensor.
    """

    boundaries: Boundaries
    layout: str
    options: EspressoPlan

    def to_message(self) -> dict[str, Any]:
        """What ranks carry out, with its digest."""
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
    """One planner's best answer.

    Attributes:
        planner: who made it. codec: that compresses, `NO_CODEC` for none.
        lossless: whether every gradient arrives as it was computed, up to how sums are rounded.
        predicted: an iteration with all gradients. buffer_bytes: of device memory on each GPU.
        sparse: what is done to sparse gradients; None where their rows are gathered as without any plan.
        rest: what is done to the others; None where they are all-reduced in buckets as without any plan.
        experts: choices of Lina's schedule, which takes all gradients; None where experts are exchanged as
            without any plan.
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
        """What ranks carry out: of `sparse`, `rest` and `experts` those that there are."""
        parts = {"sparse": self.sparse, "rest": self.rest}
        messages: dict[str, Mapping[str, Any]] = {
            name: part.to_message() for name, part in parts.items() if part is not None
        }
        if self.experts is not None:
            messages["experts"] = {**self.experts, "digest": content_digest(self.experts)}
        return messages

    @property
    def digest(self) -> str:
        """SHA-256 of what ranks carry out."""
        return content_digest({name: message["digest"] for name, message in self.messages.items()})
