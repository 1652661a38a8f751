"""Rows of ElasticFlow's figures: one policy of ours beside one published bar, and the comparison's
arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean
from typing import Any, ClassVar

from research.elasticflow.specs import ElasticFlowSpec
from research.rows import Row, number
from research.store import RunResult


class Variant(StrEnum):
    """Relation of our policy to the published one."""

    AS_PUBLISHED = "as the published code"
    AS_DESCRIBED = "as the text"
    ONE_BY_ONE = "newcomers one by one"
    TOGETHER = "newcomers of a slot together"
    OURS = "ours"
    ONLY = ""


PUBLISHED_RULES = (Variant.AS_PUBLISHED, Variant.TOGETHER, Variant.ONLY)
"""Variants that follow the code behind the published bars, as far as it is known; the others differ on
purpose."""


@dataclass(frozen=True, kw_only=True)
class PolicyRow(Row):
    """One published number beside one of our policies' numbers.

    ``authors``: the value of the authors' own simulator, if known. ``ratio_published`` and ``ratio_ours``:
    ElasticFlow's value over this one, published and ours (ours: with newcomers one by one). ``spread``: over
    the draws of deadlines that were run.
    """

    policy: str
    variant: Variant
    spec: ElasticFlowSpec
    result: RunResult | None = None
    authors: float | None = None
    ratio_published: float | None = None
    ratio_ours: float | None = None

    text_columns: ClassVar = ("Policy", "Where", "Bar", "Rule")
    number_columns: ClassVar = (
        "Published", "Authors' simulator", "Ours", "Ours / published", "Difference", "× published", "× ours",
        "On time", "Dropped", "Late", "Promised, late",
    )  # fmt: skip
    note: ClassVar = (
        "× is ElasticFlow's value over the row's, published and ours (newcomers one by one). Late: SLO jobs "
        "that were not dropped and missed their deadline; promised: those among them that had been admitted "
        "on a promise. Hover over a row to see how it was made."
    )

    @property
    def name(self) -> str:
        """The policy, its variant, and the place."""
        variant = f" ({self.variant.value})" if self.variant.value else ""
        return f"{self.policy}{variant}, {self.x}"

    @property
    def made(self) -> str:
        """The run, in one line."""
        return self.spec.described()

    @property
    def by_published_rules(self) -> bool:
        """Whether the policy's variant follows the published code."""
        return self.variant in PUBLISHED_RULES

    def cells(self) -> tuple[str, ...]:
        """Return the row as text."""
        result = self.result
        return (
            self.policy, self.x, self.series, self.variant.value,
            number(self.published), number(self.authors), number(self.ours),
            number(self.quotient, ".2f"), number(self.difference, "+.3f"),
            number(self.ratio_published, ".2f"), number(self.ratio_ours, ".2f"),
            f"{result.met:,}" if result else "–", f"{result.declined:,}" if result else "–",
            f"{result.late:,}" if result else "–", f"{result.summary['admitted_late']:,}" if result else "–",
        )  # fmt: skip

    def as_json(self) -> dict[str, Any]:
        """Return the row as plain values."""
        result = self.result
        return super().as_json() | {
            "policy": self.policy,
            "variant": self.variant.value,
            "authors_simulator": self.authors,
            "elasticflow_over_this_published": self.ratio_published,
            "elasticflow_over_this_ours": self.ratio_ours,
            "on_time": result.met if result else None,
            "declined": result.declined if result else None,
            "late": result.late if result else None,
            "admitted_late": result.summary["admitted_late"] if result else None,
            "slo_jobs": result.slo_jobs if result else None,
        }


@dataclass(frozen=True, slots=True)
class Means:
    """The two means of ElasticFlow's advantage over one baseline, over the same traces.

    ``mean_of_ratios`` is the paper's average, which traces with a baseline close to 0 dominate.
    ``ratio_of_means`` divides the mean values.
    """

    mean_of_ratios: float | None
    ratio_of_means: float | None
    traces: int


def both_means(pairs: Iterable[tuple[float | None, float | None]]) -> Means:
    """Return both means of pairs (ElasticFlow's value, the baseline's); pairs without a value are left out.

    A baseline of 0 has no ratio, so its pair is left out of the mean of ratios only.
    """
    known = [(mine, theirs) for mine, theirs in pairs if mine is not None and theirs is not None]
    ratios = [mine / theirs for mine, theirs in known if theirs > 0]
    base = sum(theirs for _, theirs in known)
    return Means(
        fmean(ratios) if ratios else None,
        sum(mine for mine, _ in known) / base if base > 0 else None,
        len(known),
    )


def find(rows: Sequence[PolicyRow], x: str, policy: str, variant: Variant | None = None) -> PolicyRow | None:
    """Return the row of a policy at a place, or None."""
    return next(
        (row for row in rows if row.x == x and row.policy == policy and variant in (None, row.variant)), None
    )
