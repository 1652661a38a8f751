"""The six tasks in numbers: published sizes and shares, assumed sequence lengths, and what follows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from moe.gating.curriculum_timing import OrderTimes, SamplePopulation, simulate_orders
from moe.gating.flops import LayerSizes, flops_per_token, implied_share
from moe.gating.timing import implied_moe_share, layer_time
from research.adaptive_gating.published import ADAPTIVE, FLOPS, STATED_SHARES, TASKS, TIMES, TOP1, TOP2

EXPERTS, GPUS = 16, 8
#: Assumed concentration of samples' two-expert shares: very heterogeneous. Nothing is published.
HETEROGENEOUS = 1.0


@dataclass(frozen=True)
class LayerKind:
    """A kind of layer of a model. `has_cross_attention`: it attends to the encoder as well."""

    sizes: LayerSizes
    has_cross_attention: bool = False

    def flops(self, experts_per_token: float) -> float:
        """Return the FLOPs of a token."""
        cross = self.sizes.attention_flops if self.has_cross_attention else 0
        return flops_per_token(self.sizes, experts_per_token) + cross


@dataclass(frozen=True)
class Task:
    """A task of Table 5.2.

    Attributes:
        kinds: kinds of MoE layers; the model has equally many of each.
        layers: MoE layers.
        samples_per_rank: samples of a GPU in a step.
        assumed: what of this is not published.
    """

    name: str
    kinds: tuple[LayerKind, ...]
    layers: int
    samples_per_rank: int
    assumed: str

    @property
    def number(self) -> int:
        """Place in the published tuples."""
        return TASKS.index(self.name)

    @property
    def printed_share(self) -> float:
        """Two-expert share that the printed FLOPs imply."""
        return implied_share(*(FLOPS[scheme][self.number] for scheme in (TOP1, TOP2, ADAPTIVE)))

    @property
    def share(self) -> float:
        """Two-expert share: as stated, or as printed FLOPs imply where the text has none or contradicts its
        table."""
        stated = STATED_SHARES[self.number]
        return self.printed_share if stated is None or self.name == "translation" else stated

    @property
    def moe_share(self) -> float:
        """Share of experts in the FLOPs of a step under top-2, which stands for their share of its time."""
        return 1.0 - self.flops(0) / self.flops(2)

    @property
    def implied_moe_share(self) -> float:
        """The share of the time that adaptive's published time implies with equal numbers of steps."""
        return implied_moe_share(TIMES[ADAPTIVE][self.number], float(layer_time(self.share)))

    def flops(self, experts_per_token: float) -> float:
        """Return the mean FLOPs of a token in a layer, by formula."""
        return sum(kind.flops(experts_per_token) for kind in self.kinds) / len(self.kinds)

    def step_time(self, two_expert_share: float) -> float:
        """Return the time of a step over top-2."""
        return 1.0 - self.moe_share + self.moe_share * float(layer_time(two_expert_share))


def _kind(width: int, hidden: int, sequence: int, has_cross_attention: bool = False) -> LayerKind:
    return LayerKind(LayerSizes(width, hidden, sequence, EXPERTS), has_cross_attention)


EVALUATED = {
    task.name: task
    for task in (
        Task("sentiment", (_kind(768, 3072, 25),), 12, 3, "25 tokens per sample"),
        Task(
            "translation", (_kind(1024, 8192, 32), _kind(1024, 4096, 32, True)), 12, 16,
            "32 tokens per sample",
        ),
        Task("question answering", (_kind(768, 3072, 384),), 12, 3, "384 tokens per sample"),
        Task(
            "summarisation", (_kind(1024, 4096, 1024), _kind(1024, 4096, 128, True)), 24, 1,
            "1,024 tokens per sample and 128 of its summary",
        ),
        Task("text completion", (_kind(1024, 4096, 1024),), 24, 1, "1,024 tokens per sample"),
        Task("dialogue", (_kind(1024, 4096, 128),), 24, 8, "128 tokens per sample"),
    )
}  # fmt: skip


@cache
def order_times(task: str, concentration: float = HETEROGENEOUS, seed: int = 0) -> OrderTimes:
    """Return the step times of a task by order of samples."""
    found = EVALUATED[task]
    return simulate_orders(
        SamplePopulation(found.share, concentration, found.layers),
        moe_share=found.moe_share, samples_per_rank=found.samples_per_rank, ranks=GPUS, seed=seed,
    )  # fmt: skip
