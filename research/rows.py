"""One published value and ours: the common part of all papers' rows, and how many rows agree."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

RATIO_BAND = 0.05
"""Shares of jobs on time that differ by more than this need an explanation (five jobs in a hundred)."""

RELATIVE_BAND = 0.10
"""The same band for other metrics, relative to the published value."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why our value differs from the published one: a cause, what is known of it, its numbers in this row."""

    #: The cause of the difference.
    cause: str
    #: What is known of the cause.
    fact: str
    #: Its numbers in this row.
    evidence: str


@dataclass(frozen=True, kw_only=True)
class Row(ABC):
    """One published number and ours; subclasses of each paper add further facts.

    ``x``: the place on the figure's horizontal axis. ``shares``: values are shares of jobs on time;
    otherwise a relative band applies. ``missing``: why there is no value of ours. ``spread``: lowest and
    highest value of ours over several draws, if there are several.
    """

    figure: str
    x: str
    #: The policy, plan or setting that the number is of.
    series: str
    #: The published number; None if it has none.
    published: float | None
    #: Our number; None if missing.
    ours: float | None
    shares: bool = True
    missing: str = ""
    spread: tuple[float, float] | None = None
    explanations: tuple[Explanation, ...] = ()

    text_columns: ClassVar[tuple[str, ...]]
    """Heads of the text cells of `cells` in the page's table."""
    number_columns: ClassVar[tuple[str, ...]]
    """Heads of the number cells after them."""
    note: ClassVar[str]
    """What a reader of these columns needs to know."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Series and place of the value, in a few words."""

    @property
    @abstractmethod
    def made(self) -> str:
        """Origin of our number, in one line."""

    @property
    @abstractmethod
    def by_published_rules(self) -> bool:
        """Whether ours follows the code behind the published value, as far as it is known; other rows differ
        on purpose."""

    @abstractmethod
    def cells(self) -> tuple[str, ...]:
        """Return the row as text, one cell for each column."""

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
        """Whether the two differ by more than the band, so that an explanation is needed."""
        difference = self.difference
        if difference is None or self.published is None:
            return False
        band = RATIO_BAND if self.shares else RELATIVE_BAND * abs(self.published)
        return abs(difference) > band + 1e-9

    def as_json(self) -> dict[str, Any]:
        """Return the row as plain values, with its origin."""
        return {
            "figure": self.figure,
            "x": self.x,
            "series": self.series,
            "published": self.published,
            "ours": self.ours,
            "ours_over_published": self.quotient,
            "difference": self.difference,
            "ours_over_draws": list(self.spread) if self.spread else None,
            "beyond_band": self.beyond_band,
            "explanations": [
                {"cause": each.cause, "fact": each.fact, "evidence": each.evidence}
                for each in self.explanations
            ],
            "made": self.made,
            "missing": self.missing,
        }


def over(value: float | None, base: float | None) -> float | None:
    """Return a quotient, None if it is undefined."""
    return value / base if value is not None and base else None


def number(value: float | None, form: str = ".3f") -> str:
    """Return a number as the page's tables show it."""
    if value is None:
        return "–"
    return f"{value:,.1f}" if form == ".3f" and abs(value) >= 10 else f"{value:{form}}"


def counts(rows: Iterable[Row]) -> dict[str, int]:
    """Count the compared values, those beyond their band, and the unexplained ones of these.

    ``..._by_published_rules``: the same for rows that follow the published code.
    """
    rows = list(rows)
    compared = [row for row in rows if row.difference is not None]
    beyond = [row for row in compared if row.beyond_band]
    by_code = [row for row in compared if row.by_published_rules]
    return {
        "compared": len(compared),
        "within_band": len(compared) - len(beyond),
        "compared_by_published_rules": len(by_code),
        "within_band_by_published_rules": sum(not row.beyond_band for row in by_code),
        "beyond_band": len(beyond),
        "unexplained": sum(not row.explanations for row in beyond),
        "not_run": sum(row.ours is None for row in rows),
    }
