"""Figures of a paper: the runs that each needs, and the report made from their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from research.executing import Results
from research.rows import Row
from research.runs import RunSpec
from research.store import RunResult
from simulation.reports.style import Drawing


@dataclass(frozen=True)
class Published:
    """Published values by figure, series and place on the horizontal axis. ``source``: the file or page they
    were read from."""

    values: Mapping[tuple[str, str, str], float]
    source: str

    def get(self, figure: str, series: str, x: str) -> float | None:
        """Return the published value, or None if the figure has none."""
        return self.values.get((figure, series, x))

    def series(self, figure: str) -> tuple[str, ...]:
        """Return the series of a figure in the order of the file."""
        return tuple(dict.fromkeys(series for name, series, _ in self.values if name == figure))

    def places(self, figure: str) -> tuple[str, ...]:
        """Return the places on a figure's horizontal axis."""
        return tuple(dict.fromkeys(x for name, _, x in self.values if name == figure))


@dataclass(frozen=True)
class Context:
    """Input of figures. ``full``: whether the full or the short version is made."""

    published: Published
    results: Results
    full: bool

    def get(self, spec: RunSpec) -> RunResult | None:
        """Return the result of a run, None if it is missing."""
        return self.results.get(spec)


@dataclass(frozen=True, slots=True)
class Check:
    """One expected property. ``met`` is None if its runs are missing; ``figures`` has the numbers it was
    checked with."""

    name: str
    met: bool | None
    figures: str

    def as_json(self) -> dict[str, Any]:
        """Return the check as plain values."""
        return {"name": self.name, "met": self.met, "figures": self.figures}


@dataclass(frozen=True)
class Table:
    """A table beside the rows. Cells are text; ``values`` has the same for programs."""

    title: str
    #: Text below the table.
    note: str
    #: Heads of the columns.
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    values: tuple[dict[str, Any], ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the table as plain values."""
        values = self.values or tuple(dict(zip(self.header, row, strict=True)) for row in self.rows)
        return {"title": self.title, "note": self.note, "rows": list(values)}


@dataclass(frozen=True)
class FigureReport:
    """One section of the report. ``made``: the origin of its numbers, in a sentence."""

    name: str
    title: str
    made: str
    notes: Sequence[str] = ()
    rows: Sequence[Row] = ()
    tables: Sequence[Table] = ()
    drawings: Sequence[Drawing] = ()
    checks: Sequence[Check] = field(default_factory=tuple)


@dataclass(frozen=True)
class FigureDefinition:
    """A figure that can be reproduced. ``runs`` receives whether the full version is made.

    ``needs_traces``: whether it is about published traces, so that it cannot run without them.
    """

    name: str
    title: str
    needs_traces: bool
    runs: Callable[[bool], Sequence[RunSpec]]
    report: Callable[[Context], FigureReport]
    also_called: tuple[str, ...] = ()


def at_least(name: str, value: float | None, least: float, form: str = ",.0f") -> Check:
    """Return a check that a value is at least ``least``."""
    if value is None:
        return Check(name, None, "not run")
    return Check(name, value >= least - 1e-9, f"{value:{form}}, at least {least:{form}}")


def within(name: str, value: float | None, centre: float, band: float, form: str = ",.0f") -> Check:
    """Return a check that a value is within ``band`` of ``centre``."""
    if value is None:
        return Check(name, None, "not run")
    return Check(name, abs(value - centre) <= band + 1e-9, f"{value:{form}}, {centre:{form}} ± {band:{form}}")
