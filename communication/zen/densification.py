"""Densification: the density of summed gradients by number of workers, and skew by number of parts (Zen
3.2.2).

The paper has end points only. In between, the density of i workers' sum is modelled as d * i ** beta, at most
1, which fits partial overlap on all four of its models. Measured points are matched exactly. Beyond the last
one, sums fill up like bins hit by random throws, so that they approach 1 smoothly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, expm1, isfinite, log, log1p


@dataclass(frozen=True)
class Densification:
    """The density of the sum of several workers.

    Attributes:
        density: d, of one worker's tensor.
        beta: 0 if all workers touch the same units, 1 if none overlap.
        measured: pairs of a number of workers and the density of their sum, ascending. Between neighbours,
            including `density` at 1, a power law holds.
    """

    density: float
    beta: float
    measured: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        if not (isfinite(self.density) and 0.0 <= self.density <= 1.0):
            raise ValueError(f"density is {self.density}; it must be from 0 to 1")
        if not (isfinite(self.beta) and 0.0 <= self.beta <= 1.0):
            raise ValueError(f"beta is {self.beta}; it must be from 0 to 1")
        last = (1, self.density)
        for workers, density in self.measured:
            if workers <= last[0]:
                raise ValueError("measured densities are of ascending numbers of workers above 1")
            if not last[1] <= density <= min(1.0, workers * self.density) + 1e-9:
                raise ValueError(
                    f"the sum of {workers} workers has a density of {density}: it cannot be below that of "
                    "fewer, above 1, or above that of workers without any overlap"
                )
            last = (workers, density)

    def after(self, workers: float) -> float:
        """Return the density of the sum of ``workers`` gradients, d^(i). Raises ValueError below 1."""
        if workers < 1:
            raise ValueError(f"there are {workers} workers; there must be at least 1")
        if self.density == 0.0:
            return 0.0
        before = (1, self.density)
        for point in self.measured:
            if workers <= point[0]:
                share = log(workers / before[0]) / log(point[0] / before[0])
                return float(before[1] * (point[1] / before[1]) ** share)
            before = point
        grown = (workers / before[0]) ** self.beta
        if self.measured and before[1] < 1.0:
            return -expm1(log1p(-before[1]) * grown)
        return min(1.0, float(before[1] * grown))

    def with_batch(self, share: float) -> Densification:
        """Return the law for a batch per worker of ``share`` times the measured one.

        A batch of i times the size touches what i workers touch. So a larger share starts further on in the
        law, and a smaller one extrapolates it.
        """
        if not (isfinite(share) and share > 0.0):
            raise ValueError(f"the share of the batch is {share}; it must be finite and positive")
        if share >= 1.0:
            density = self.after(share)
        else:
            # Extrapolate the law's first step, because nothing smaller was measured.
            slope = self.beta
            if self.measured and self.density:
                workers, sum_density = self.measured[0]
                slope = log(sum_density / self.density) / log(workers)
            density = self.density * share**slope
        points = tuple(
            (round(workers / share), one)
            for workers, one in self.measured
            if workers / share > 1.0 and (workers / share).is_integer()
        )
        return Densification(
            density, self.beta, tuple(p for p in points if density <= p[1] <= p[0] * density)
        )

    def ratio(self, workers: float) -> float:
        """Return the densification ratio γ of ``workers`` workers; 1 for a tensor of zeros."""
        return self.after(workers) / self.density if self.density else 1.0


def beta_between(density: float, workers: int, density_after: float) -> float:
    """Return the beta with which ``workers`` of this density reach ``density_after``, as the paper's end
    points give it. Raises ValueError if there is none."""
    if not 0.0 < density <= density_after or workers < 2:
        raise ValueError(
            f"no beta explains a density of {density} that becomes {density_after} at {workers} workers"
        )
    return log(density_after / density) / log(workers)


def fitted_densification(measured: Mapping[int, float]) -> Densification:
    """Return the law through measured densities by number of workers, including 1.

    Beta is the slope between the last two points, in the model of random throws: sums grow ever more slowly,
    so an average slope would be too steep beyond them.

    Raises ValueError without a density of one worker, or for densities that no workers can have.
    """
    if 1 not in measured:
        raise ValueError("densities of several workers were measured; that of one worker is missing")
    points = sorted(measured.items())
    beta = 0.0
    if len(points) > 1 and points[-2][1] > 0.0 and points[-1][1] < 1.0:
        (fewer, less), (more, most) = points[-2:]
        beta = log(log1p(-most) / log1p(-less)) / log(more / fewer)
    return Densification(measured[1], min(1.0, max(0.0, beta)), tuple(points[1:]))


@dataclass(frozen=True)
class Skew:
    """The fullest of n contiguous equal parts over the mean: n ** sigma, at most n.

    Attributes:
        sigma: 0 if non-zeros lie evenly, 1 if all are in one part.
    """

    sigma: float = 0.0

    def __post_init__(self) -> None:
        if not (isfinite(self.sigma) and 0.0 <= self.sigma <= 1.0):
            raise ValueError(f"sigma is {self.sigma}; it must be from 0 to 1")

    def ratio(self, parts: int) -> float:
        """Return the skewness ratio with ``parts`` parts, from 1 to their number; monotonic in ``parts``."""
        return exp(self.sigma * log(parts)) if parts > 1 else 1.0


def skew_from(parts: int, ratio: float) -> Skew:
    """Return the skew whose fullest of ``parts`` is ``ratio`` times the mean. Raises ValueError if none
    is."""
    if parts < 2 or not 1.0 <= ratio <= parts:
        raise ValueError(f"the skewness ratio is {ratio}; it must be from 1 to {parts}, the number of parts")
    return Skew(log(ratio) / log(parts))
