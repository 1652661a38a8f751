"""Published values beside ours: one row a number, with what it is made of and the arithmetic of comparing
them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean
from typing import Any

from simulation.reproduction.runs import RunSpec
from simulation.reproduction.store import RunResult

RATIO_BAND = 0.05
"""Shares of jobs on time that differ by more than this are explained (five jobs in a hundred)."""

RELATIVE_BAND = 0.10
"""The same for other metrics, as a share of the published value."""


class Variant(StrEnum):
    """How a policy of ours stands to the published one."""

    AS_PUBLISHED = "as the published code"
    AS_DESCRIBED = "as the text"
    ONE_BY_ONE = "newcomers one by one"
    TOGETHER = "newcomers of a slot together"
    OURS = "ours"
    ONLY = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a value of ours is not the published one: a cause, what is known about it, and its figures in this
    row."""

    cause: str
    fact: str
    evidence: str


@dataclass(frozen=True)
class Row:
    """One published number and ours.

    ``authors``: what the authors' own simulator gives for it, where somebody has run it. ``ratio_published``
    and ``ratio_ours``: ElasticFlow's value over this one, published and ours (ours: with newcomers one by
    one). ``spread``: lowest and highest value of ours over the draws of deadlines run, where there are
    several. ``shares``: values are shares of jobs on time; else they are held against a relative band.
    """

    figure: str
    x: str
    series: str
    policy: str
    variant: Variant
    published: float | None
    ours: float | None
    spec: RunSpec
    result: RunResult | None = None
    authors: float | None = None
    ratio_published: float | None = None
    ratio_ours: float | None = None
    shares: bool = True
    missing: str = ""
    spread: tuple[float, float] | None = None
    explanations: tuple[Explanation, ...] = ()

    @property
    def difference(self) -> float | None:
        """Ours minus published."""
        return self.ours - self.published if self.ours is not None and self.published is not None else None

    @property
    def quotient(self) -> float | None:
        """Ours over published."""
        return over(self.ours, self.published)

    @property
    def beyond_band(self) -> bool:
        """Whether the two differ by more than the band, so that an explanation is due."""
        difference = self.difference
        if difference is None or self.published is None:
            return False
        band = RATIO_BAND if self.shares else RELATIVE_BAND * abs(self.published)
        return abs(difference) > band + 1e-9

    def as_json(self) -> dict[str, Any]:
        """The row as plain values; each says how it was made."""
        result = self.result
        return {
            "figure": self.figure,
            "x": self.x,
            "series": self.series,
            "policy": self.policy,
            "variant": self.variant.value,
            "published": self.published,
            "authors_simulator": self.authors,
            "ours": self.ours,
            "ours_over_published": self.quotient,
            "difference": self.difference,
            "ours_over_draws": list(self.spread) if self.spread else None,
            "elasticflow_over_this_published": self.ratio_published,
            "elasticflow_over_this_ours": self.ratio_ours,
            "on_time": result.met if result else None,
            "declined": result.declined if result else None,
            "late": result.late if result else None,
            "admitted_late": result.summary["admitted_late"] if result else None,
            "slo_jobs": result.slo_jobs if result else None,
            "beyond_band": self.beyond_band,
            "explanations": [
                {"cause": each.cause, "fact": each.fact, "evidence": each.evidence}
                for each in self.explanations
            ],
            "made": self.spec.described(),
            "missing": self.missing,
        }


def over(value: float | None, base: float | None) -> float | None:
    """A quotient, None where there is none."""
    return value / base if value is not None and base else None


@dataclass(frozen=True, slots=True)
class Means:
    """The two means of ElasticFlow's advantage over one baseline, over the same traces.

    ``mean_of_ratios`` is what the paper calls the average: it is dominated by traces on which the baseline is
    close to
    0. ``ratio_of_means`` divides the mean values.
    """

    mean_of_ratios: float | None
    ratio_of_means: float | None
    traces: int


def both_means(pairs: Iterable[tuple[float | None, float | None]]) -> Means:
    """Both means of pairs (ElasticFlow's value, the baseline's); pairs that lack a value are left out.

    A baseline of 0 has no ratio, and leaves the pair out of the mean of ratios alone.
    """
    known = [(mine, theirs) for mine, theirs in pairs if mine is not None and theirs is not None]
    ratios = [mine / theirs for mine, theirs in known if theirs > 0]
    base = sum(theirs for _, theirs in known)
    return Means(
        fmean(ratios) if ratios else None,
        sum(mine for mine, _ in known) / base if base > 0 else None,
        len(known),
    )


def find(rows: Sequence[Row], x: str, policy: str, variant: Variant | None = None) -> Row | None:
    """The row of a policy at a place, or None."""
    return next(
        (row for row in rows if row.x == x and row.policy == policy and variant in (None, row.variant)), None
    )
