"""What an order of samples saves, simulated on drawn samples (SIM-A)."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from moe.gating.curriculum import Curriculum, Order, SampleRecord, deal, order_samples
from moe.gating.timing import Waiting, step_time

#: Tokens of a drawn sample: enough that whole tokens do not change its shares visibly.
_TOKENS = 1_000_000


@dataclass(frozen=True)
class SamplePopulation:
    """Distribution of the two-expert shares of samples.

    Attributes:
        mean_share: mean over all samples.
        concentration: of the Beta distribution of samples' shares; smaller means more heterogeneous.
        layer_spread: standard deviation of a layer's share around its sample's, relative to that.
        noise: standard deviation of additional, absolute noise.
    """

    mean_share: float
    concentration: float
    layers: int = 12
    samples: int = 4800
    layer_spread: float = 0.3
    noise: float = 0.02

    def __post_init__(self) -> None:
        if not 0.0 < self.mean_share < 1.0:
            raise ValueError(f"mean_share is {self.mean_share}; it must lie between 0 and 1")
        if not (isfinite(self.concentration) and self.concentration > 0.0):
            raise ValueError(f"concentration is {self.concentration}; it must be above 0")
        if self.layers < 1 or self.samples < 1:
            raise ValueError(f"layers is {self.layers} and samples {self.samples}; both must be at least 1")

    def draw(self, generator: np.random.Generator) -> SampleRecord:
        """Draw the record of all samples."""
        alpha, beta = self.mean_share * self.concentration, (1.0 - self.mean_share) * self.concentration
        by_sample = generator.beta(alpha, beta, self.samples)
        shape = (self.samples, self.layers)
        shares = by_sample[:, None] * (1.0 + self.layer_spread * generator.standard_normal(shape))
        shares += self.noise * generator.standard_normal(shape)
        # At least one two-expert token, since a sample without any makes both orders the same.
        two = np.clip(np.round(shares * _TOKENS), 1, _TOKENS).astype(np.int64)
        return SampleRecord(np.full(shape, _TOKENS, np.int64), two)


@dataclass(frozen=True)
class OrderTimes:
    """Mean step time relative to top-2 under each order of samples."""

    random: float
    cosine: float
    magnitude: float

    def inflation(self, curriculum: Curriculum) -> float:
        """How much longer the random order takes than this one, as a fraction."""
        ordered = self.cosine if curriculum is Curriculum.COSINE else self.magnitude
        return self.random / ordered - 1.0


def simulate_orders(
    population: SamplePopulation,
    *,
    moe_share: float,
    samples_per_rank: int,
    ranks: int = 8,
    waiting: Waiting = Waiting.SLOWEST,
    seed: int = 0,
) -> OrderTimes:
    """Return the step times of one epoch under each order.

    Args:
        moe_share: share of MoE layers in the step time under top-2.
        samples_per_rank: samples of one rank in a step.
    """
    generator = np.random.default_rng(seed)
    record = population.draw(generator)
    shares = record.complexity

    def time_of(order: Order) -> float:
        return epoch_time(shares, deal(order, ranks, samples_per_rank), moe_share, waiting)

    return OrderTimes(
        time_of(generator.permutation(population.samples)),
        time_of(order_samples(record, Curriculum.COSINE)),
        time_of(order_samples(record, Curriculum.MAGNITUDE)),
    )


def epoch_time(
    shares: NDArray[np.float64],
    batches: NDArray[np.int64],
    moe_share: float,
    waiting: Waiting = Waiting.SLOWEST,
) -> float:
    """Return the mean step time relative to top-2, for samples of equal length.

    Args:
        shares: [samples, layers] two-expert shares.
        batches: [steps, ranks, samples of a rank], as `deal` returns them.

    Raises:
        ValueError: there is no complete batch.
    """
    if not len(batches):
        raise ValueError("there are too few samples for one complete batch")
    return float(step_time(shares[batches].mean(axis=2), moe_share, waiting).mean())
