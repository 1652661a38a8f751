"""Rows of papers whose values planners compute again: one published value, the model's, and why they
differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from research.figure import Context
from research.rows import Explanation, Row, number


@dataclass(frozen=True, kw_only=True)
class ModelRow(Row):
    """One published value and ours. ``how``: what computed ours. ``unit``: of both; empty for ratios.

    ``calibrated``: ours was fitted to the published value because its inputs are not published; it agrees by
    construction and confirms nothing.
    """

    how: str
    unit: str = ""
    calibrated: bool = False

    text_columns: ClassVar = ("Quantity", "Where", "Unit", "How")
    number_columns: ClassVar = ("Published", "Ours", "Ours / published", "Difference")
    note: ClassVar = (
        "Ours is computed by the planners that the platform calls, or simulated with them, with the "
        "published times and sizes. Calibrated rows agree by construction. Hover over a row to see how it "
        "was made."
    )

    @property
    def name(self) -> str:
        """Quantity and place."""
        return f"{self.series}, {self.x}"

    @property
    def made(self) -> str:
        """What computed our value."""
        return self.how

    @property
    def by_published_rules(self) -> bool:
        """Whether nothing was fitted."""
        return not self.calibrated

    def cells(self) -> tuple[str, ...]:
        """Return the row as text."""
        return (
            self.series,
            self.x,
            self.unit or "–",
            "calibrated" if self.calibrated else "model",
            number(self.published),
            number(self.ours),
            number(self.quotient, ".2f"),
            number(self.difference, "+.3f"),
        )

    def as_json(self) -> dict[str, Any]:
        """Return the row as plain values."""
        return super().as_json() | {
            "quantity": self.series,
            "unit": self.unit,
            "calibrated": self.calibrated,
        }


def row(
    context: Context, figure: str, series: str, x: str, ours: float | None, how: str, *, unit: str = "",
    shares: bool = False, calibrated: bool = False, why: tuple[Explanation, ...] = (), missing: str = "",
) -> ModelRow:  # fmt: skip
    """Return a row with our value and the published one at this place, if there is one."""
    return ModelRow(
        figure=figure,
        x=x,
        series=series,
        published=context.published.get(figure, series, x),
        ours=ours,
        shares=shares,
        missing=missing,
        explanations=why,
        how=how,
        unit=unit,
        calibrated=calibrated,
    )
